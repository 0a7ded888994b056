"""Pieces of Markdown for the model card, and what of this machine must not get into it.

The part of a model card that says how to load the model.

The model card of a run: README.md with the Hub's metadata, the results and the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_efficient.errors import OutputError
from hf_efficient.recipe.schema import AdapterSection, ModelSection, QuantizationSection, Recipe, compute_dtype
from hf_efficient.text import seconds

_PROSE = ("description", "system")
_DATA_FILES = {".jsonl", ".json", ".csv", ".parquet", ".gguf"}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; pipes and line breaks in the cells are made harmless."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def number(value: Any) -> str:
    """A value for a table: counts with separators, measures to four significant digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.4g}"


def fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def hub_name(name: str) -> str | None:
    """``name`` where the Hub takes it for a model or data set; None for paths, files, packages and builtins.

    The Hub refuses a card whose ``base_model`` is not a name of its own, and a path would tell of this
    machine.
    """
    path = Path(name).expanduser()
    if path.exists() or path.suffix.lower() in _DATA_FILES:
        return None
    try:
        validate_repo_id(name)
    except HFValidationError:
        return None
    return name


def without_local_paths(value: Any) -> Any:
    """The value with every absolute path in it, at any depth, shortened to its last part.

    Texts that people write (a system message that begins with a slash) stay as they are.
    """
    if isinstance(value, Mapping):
        return {key: item if key in _PROSE else without_local_paths(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_local_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    if PureWindowsPath(value).is_absolute():
        return PureWindowsPath(value).name
    return PurePosixPath(value).name or value if value.startswith(("/", "~")) else value


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


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


_METHODS = {"sft": "supervised fine-tuning", "dpo": "direct preference optimization"}


def write_model_card(
    output_dir: Path,
    recipe: Recipe,
    results: Mapping[str, float],
    environment: Mapping[str, Any],
    data_summary: Mapping[str, Any],
) -> Path:
    """Write ``output_dir/README.md``, in place of the one that PEFT or the Trainer wrote.

    No absolute path of this machine gets into it: where the recipe holds one, its last part stands.
    """
    path = Path(output_dir) / "README.md"
    sections = [
        f"# {recipe.name}",
        recipe.description,
        "## What was trained",
        table(["", ""], _training_rows(recipe)),
        table(["data", ""], _summary_rows(data_summary)) if _summary_rows(data_summary) else "",
        *_results(results),
        "## How to load it",
        usage(recipe),
        "## Recipe",
        _recipe_details(recipe),
        "## Versions and hardware",
        table(["", ""], _environment_rows(environment)),
    ]
    content = f"---\n{_metadata(recipe).to_yaml()}\n---\n\n" + "\n\n".join(part for part in sections if part) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ModelCard(content).save(path)
    except OSError as error:
        raise OutputError(f"output_dir: {path} cannot be written: {error.strerror or error}.") from error
    return path


def _metadata(recipe: Recipe) -> ModelCardData:
    adapter = recipe.adapter
    data_sets = [name for source in recipe.data.train if (name := hub_name(source.path))]
    variants = [name for name, on in (("dora", adapter.dora), ("rslora", adapter.rslora)) if on]
    return ModelCardData(
        base_model=hub_name(recipe.model.id),
        library_name="transformers" if adapter.method == "full" else "peft",
        pipeline_tag="text-generation",
        tags=["hf-efficient", recipe.method, adapter.method, *variants],
        datasets=list(dict.fromkeys(data_sets)) or None,
        model_name=recipe.name,
    )


def _training_rows(recipe: Recipe) -> list[tuple[str, str]]:
    sources = [_source(source.path, source.weight) for source in recipe.data.train]
    rows = [
        ("base model", str(without_local_paths(recipe.model.id))),
        ("objective", _METHODS[recipe.method]),
        ("method", _method(recipe)),
        ("training data", ", ".join(sources)),
    ]
    names = ("learning_rate", "num_train_epochs", "max_steps", "max_length", "packing", "seed")
    return rows + [(name, number(recipe.train[name])) for name in names if name in recipe.train]


def _source(path: str, weight: float) -> str:
    return str(without_local_paths(path)) + ("" if weight == 1.0 else f" (weight {weight:g})")


def _method(recipe: Recipe) -> str:
    adapter = recipe.adapter
    if adapter.method == "full":
        return "full fine-tuning, all weights"
    kind = "DoRA" if adapter.dora else "LoRA"
    scale = "rank-stabilised, " if adapter.rslora else ""
    targets = adapter.target_modules if isinstance(adapter.target_modules, str) else ", ".join(adapter.target_modules)
    text = f"{kind}, {scale}rank {adapter.r}, alpha {adapter.alpha:g}, dropout {adapter.dropout:g}, on {targets}"
    if adapter.modules_to_save:
        text += f"; {', '.join(adapter.modules_to_save)} in full"
    if adapter.method == "qlora":
        text += f"; base in {_quantization(adapter.quantization or QuantizationSection())}"
    return text


def _quantization(section: QuantizationSection) -> str:
    if section.bits == 8:
        return "8-bit LLM.int8()"
    double = " with double quantization" if section.double_quant else ""
    return f"4-bit {section.type.upper()}{double}, computed in {compute_dtype(section)}"


def _summary_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (key.replace("_", " "), number(without_local_paths(value)))
        for key, value in summary.items()
        if value is not None
    ]


def _results(results: Mapping[str, float]) -> list[str]:
    metrics = list(dict.fromkeys(key.removesuffix("_before") for key in results if key.startswith("eval_")))
    others = [_run_row(key, value) for key, value in results.items() if not key.startswith("eval_")]
    parts = ["## Results"] if results else []
    if metrics:
        rows = [
            (key.removeprefix("eval_"), _figure(results, f"{key}_before"), _figure(results, key)) for key in metrics
        ]
        with_before = any(before for _, before, _ in rows)
        header = ["on the evaluation data", *(["before"] if with_before else []), "after"]
        parts.append(table(header, rows if with_before else [(name, after) for name, _, after in rows]))
    if others:
        parts.append(table(["run", ""], others))
    return parts


def _run_row(key: str, value: float) -> tuple[str, str]:
    if key.endswith("_seconds"):
        return key.removesuffix("_seconds").replace("_", " ") + " time", seconds(value)
    return key.replace("_", " "), number(value)


def _figure(results: Mapping[str, float], key: str) -> str:
    return number(results[key]) if results.get(key) is not None else ""


def _recipe_details(recipe: Recipe) -> str:
    text = yaml.safe_dump(without_local_paths(recipe.resolved()), sort_keys=False, allow_unicode=True)
    return f"<details>\n<summary>All values, defaults included</summary>\n\n{fenced(text, 'yaml')}\n\n</details>"


def _environment_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    gpus = [f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in environment.get("gpus") or ()]
    memory = environment.get("memory_bytes")
    facts = {
        "GPU": ", ".join(f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)),
        "CPU": environment.get("cpu"),
        "cores": environment.get("usable_cores"),
        "memory": f"{memory / 2**30:.0f} GiB" if memory else None,
        "platform": environment.get("platform"),
        "driver": environment.get("driver"),
        "CUDA": environment.get("cuda"),
        "Python": environment.get("python"),
        **(environment.get("versions") or {}),
    }
    return [(name, str(value)) for name, value in facts.items() if value]
