"""A rank's simulation under FSDP2 against a real training, the model cut by torch's own ``fully_shard``.

Collectives do nothing (torch's fake process group), so that what is computed is nonsense, and every allocation is
FSDP2's or the step's own. accelerate has no way to FSDP2 on a CPU: a model is cut here as its ``fsdp2_prepare_model``
does on a GPU.
"""

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from real_allocations import most_at_once, real_allocations
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForCausalLM

from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks.rank import simulate_rank
from hf_efficient.planning.simulation import planned_memory
from hf_efficient.planning.trainers import simulation_trainer
from hf_efficient.recipe.schema import Recipe


def measured(recipe: Recipe, length: int) -> dict[str, int]:
    """Train two steps; bytes by name. ``recipe``: ``strategy: fsdp2``. ``length``: of every row."""
    args = simulation_arguments(recipe, recipe.output_dir)
    model = add_adapter(load_base(recipe), recipe.adapter, seed=0, checkpointing=args.gradient_checkpointing)
    with _one_of(int(recipe.distributed.processes)):
        _cut(model, mixed=args.bf16)
        trainer = simulation_trainer(recipe, model, args, length)
        _reduce_last(trainer, model)
        before = _local(model.parameters()) + sum(one.nbytes for one in model.buffers())
        gc.collect()
        most = most_at_once(real_allocations(trainer.train))
        states = [value for held in trainer.optimizer.state.values() for value in held.values()]
        return {"weights": before, "peak": before + most, "optimizer_state": _local(states)}


@contextmanager
def _one_of(ranks: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _cut(model: Any, *, mixed: bool) -> None:
    dtype = torch.bfloat16 if mixed else None
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    options = {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype), "mesh": mesh}
    for parameter in model.parameters():
        if mixed and parameter.requires_grad:
            parameter.data = parameter.data.float()
    for layer in [one for one in model.modules() if type(one).__name__.endswith("DecoderLayer")]:
        fully_shard(layer, **options)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    norm = next(one.norm for one in model.modules() if hasattr(one, "norm") and hasattr(one, "layers"))
    tied = embedding.weight is head.weight
    if not tied:
        fully_shard(embedding, **options)
    fully_shard([norm, embedding, head] if tied else [norm, head], reshard_after_forward=False, **options)
    fully_shard(model, **options)


def _reduce_last(trainer: Any, model: Any) -> None:
    """As ``Accelerator.no_sync`` does for FSDP2."""
    micro_batches, inner, seen = trainer.args.gradient_accumulation_steps, trainer.training_step, []

    def training_step(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        model.set_requires_gradient_sync(len(seen) % micro_batches == 0)
        return inner(*args, **kwargs)

    trainer.training_step = training_step


def _local(tensors: Any) -> int:
    """Bytes of these tensors on this rank."""
    return sum((one.to_local() if hasattr(one, "to_local") else one).nbytes for one in tensors)


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
    memory = planned_memory(simulate_rank(wanted, model_config(wanted.model), 32, on_gpu=False))
    assert memory.model_bytes == real["weights"]
    assert memory.category_peak_bytes["optimizer_state"] == real["optimizer_state"]
    assert memory.peak_allocated_bytes == pytest.approx(real["peak"], rel=0.0005)
