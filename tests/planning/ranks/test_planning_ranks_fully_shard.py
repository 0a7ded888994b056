"""A rank's simulation under FSDP2 against a real training, the model cut by torch's own ``fully_shard``."""

import functools

import pytest
import torch
from real_fully_shard import measured
from transformers import AutoModelForCausalLM

from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks.rank import simulate_rank
from hf_efficient.planning.simulation import planned_memory

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
def saved_four(tmp_path_factory, tiny_config_of):
    """The folder of a family's model of four layers, float32."""

    @functools.cache
    def save(family):
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(family)
        config = tiny_config_of(family, num_hidden_layers=4)
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        return folder

    return save


FAST = ("LoRA", "mixed precision")


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        *((case, 8) for case in FAST),
        pytest.param("accumulation", 2, marks=pytest.mark.slow),
        *(pytest.param(case, 8, marks=pytest.mark.slow) for case in CASES if case not in FAST),
    ],
)
def test_the_peak_of_a_rank_is_the_real_one(case, ranks, recipe, saved_four):
    family, method, dtype, train = CASES[case]
    adapter = {name: train[name] for name in ("modules_to_save",) if name in train}
    train = {**TRAIN, **{name: value for name, value in train.items() if name not in adapter}}
    distributed = {"processes": ranks, "strategy": "fsdp2"}
    wanted = recipe(saved_four(family), method, train, dtype, distributed=distributed, **adapter)
    with torch.backends.mkldnn.flags(enabled=False):  # its products take room for themselves
        real = measured(wanted, 32)
    memory = planned_memory(simulate_rank(wanted, model_config(wanted.model), 32))
    assert memory.model_bytes == real["weights"]
    assert memory.category_peak_bytes["optimizer_state"] == real["optimizer_state"]
    assert memory.peak_allocated_bytes == pytest.approx(real["peak"], rel=0.0005)
