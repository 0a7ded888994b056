"""A rank's simulation under FSDP2 against a real training, the model cut by torch's own ``fully_shard``."""

import pytest
import torch
from real_fully_shard import measured
from transformers import AutoModelForCausalLM

from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks.rank import simulate_rank
from hf_efficient.planning.simulation import planned_memory
from hf_efficient.recipe.schema import Recipe

TRAIN = {
    "per_device_train_batch_size": 1,
    "max_length": 32,
    "optim": "adamw_torch",
    # The state of a CPU's random generator, which a recomputation would keep, is larger than a layer here.
    "gradient_checkpointing_kwargs": {"use_reentrant": False, "preserve_rng_state": False},
}
IN_FLOAT32 = {"bf16": False}
CASES = {
    "full": ("llama", "full", "float32", IN_FLOAT32),
    "accumulation": ("llama", "full", "float32", {**IN_FLOAT32, "gradient_accumulation_steps": 2}),
    "stored activations": ("llama", "full", "float32", {**IN_FLOAT32, "gradient_checkpointing": False}),
    "LoRA": ("llama", "lora", "float32", {**IN_FLOAT32, "gradient_accumulation_steps": 2}),
    "a tied head": ("qwen2", "full", "float32", IN_FLOAT32),
    "mixed precision": ("llama", "full", "bfloat16", {}),
    "a head to save": ("llama", "lora", "float32", {**IN_FLOAT32, "modules_to_save": ["lm_head"]}),
}


@pytest.fixture(scope="module")
def recipe_of(tmp_path_factory, tiny_config_of):
    folder = tmp_path_factory.mktemp("models")

    def build(case, ranks):
        family, method, dtype, train = CASES[case]
        if not (folder / family).exists():
            torch.manual_seed(0)
            config = tiny_config_of(family, num_hidden_layers=4)
            AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder / family)
        adapter = {"modules_to_save": train["modules_to_save"]} if "modules_to_save" in train else {}
        own = {name: value for name, value in train.items() if name != "modules_to_save"}
        return Recipe.model_validate(
            {
                "name": "tiny",
                "model": {"id": str(folder / family), "dtype": dtype},
                "adapter": {"method": method, **adapter},
                "data": {"train": [{"path": "chats.jsonl"}]},
                "distributed": {"processes": ranks, "strategy": "fsdp2"},
                "train": {**TRAIN, **own},
                "output_dir": str(folder / "out"),
            }
        )

    return build


FAST = ("LoRA", "mixed precision")


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        *((case, 8) for case in FAST),
        pytest.param("accumulation", 2, marks=pytest.mark.slow),
        *(pytest.param(case, 8, marks=pytest.mark.slow) for case in CASES if case not in FAST),
    ],
)
def test_the_peak_of_a_rank_is_the_real_one(case, ranks, recipe_of):
    recipe = recipe_of(case, ranks)
    with torch.backends.mkldnn.flags(enabled=False):  # its products take room for themselves
        real = measured(recipe, 32)
    memory = planned_memory(simulate_rank(recipe, model_config(recipe.model), 32))
    assert memory.model_bytes == real["weights"]
    assert memory.category_peak_bytes["optimizer_state"] == real["optimizer_state"]
    assert memory.peak_allocated_bytes == pytest.approx(real["peak"], rel=0.0005)
