"""The part of a model card that says how to load the model."""

from __future__ import annotations

from hf_efficient.launch.card_text import fenced, hub_name
from hf_efficient.recipe.precision import compute_dtype
from hf_efficient.recipe.schema import AdapterSection, ModelSection, QuantizationSection, Recipe

__all__ = ["usage"]

FOLDER = "path/to/this/folder"


def usage(recipe: Recipe) -> str:
    """Markdown with Python that loads what the run saved, for plain transformers and PEFT."""
    if recipe.adapter.method == "full":
        return "With transformers:\n\n" + fenced(_whole_model(recipe.model, FOLDER), "python")
    parts = ["With PEFT, on the base that it was trained beside:", fenced(_adapter(recipe), "python")]
    if recipe.adapter.merge:
        parts += [
            "The merged model, with transformers alone:",
            fenced(_whole_model(recipe.model, f"{FOLDER}/merged"), "python"),
        ]
    else:
        parts.append(f"`hf-efficient merge {FOLDER}` writes a merged model that transformers loads alone.")
    return "\n\n".join(parts)


def _whole_model(model: ModelSection, folder: str) -> str:
    remote = ", trust_remote_code=True" if model.trust_remote_code else ""
    return (
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("{folder}", dtype="auto"{remote})\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{folder}")'
    )


def _adapter(recipe: Recipe) -> str:
    quantized = recipe.adapter.method == "qlora"
    imports = ["AutoModelForCausalLM", "AutoTokenizer", *(["BitsAndBytesConfig"] if quantized else [])]
    arguments = "".join(f"    {argument},\n" for argument in _base_arguments(recipe.model, recipe.adapter))
    return (
        "import torch\nfrom peft import PeftModel\n"
        f"from transformers import {', '.join(imports)}\n\n"
        f"base = AutoModelForCausalLM.from_pretrained(\n{arguments})\n"
        f'model = PeftModel.from_pretrained(base, "{FOLDER}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{FOLDER}")'
    )


def _base_arguments(model: ModelSection, adapter: AdapterSection) -> list[str]:
    name = hub_name(model.id)
    arguments = [f'"{name}"' if name else '"path/to/the/base/model"']
    if name and model.revision:
        arguments.append(f'revision="{model.revision}"')
    if name and model.gguf_file:
        arguments.append(f'gguf_file="{model.gguf_file}"')
    arguments.append('dtype="auto"' if model.dtype == "auto" else f"dtype=torch.{model.dtype}")
    if adapter.method == "qlora":
        section = adapter.quantization or QuantizationSection()
        arguments.append(f"quantization_config=BitsAndBytesConfig({_bitsandbytes(section)})")
    if model.trust_remote_code:
        arguments.append("trust_remote_code=True")
    return arguments


def _bitsandbytes(section: QuantizationSection) -> str:
    if section.bits == 8:
        return "load_in_8bit=True"
    return (
        f'load_in_4bit=True, bnb_4bit_quant_type="{section.type}", '
        f"bnb_4bit_use_double_quant={section.double_quant}, "
        f"bnb_4bit_compute_dtype=torch.{compute_dtype(section)}"
    )
