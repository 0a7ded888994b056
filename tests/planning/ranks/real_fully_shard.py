"""A real training of one rank under torch's ``fully_shard``, the others being pretended: what it allocates and holds.

Collectives do nothing (torch's fake process group), so that what is computed is nonsense, and every allocation is
FSDP2's or the step's own. accelerate has no way to FSDP2 on a CPU: a model is cut here as its ``fsdp2_prepare_model``
does on a GPU.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from real_allocations import most_at_once, real_allocations
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.trainers import simulation_trainer
from hf_efficient.recipe.schema import Recipe


def measured(recipe: Recipe, length: int) -> dict[str, int]:
    """Train two steps; bytes by name.

    Args:
        recipe: ``strategy: fsdp2``.
        length: of every row.
    """
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
