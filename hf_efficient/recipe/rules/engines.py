"""What the engines that shard a model cannot shard."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = [
    "engine_is_named_for_several_machines",
    "optimizer_can_be_sharded",
    "quantized_weights_can_be_sharded",
    "wrap_classes_are_of_fsdp2",
]

_ZERO = ("zero1", "zero2", "zero3")
_TORCH = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")
"""Step on each number by itself, so that any share of a parameter can be stepped on, and know DTensors."""
_BITSANDBYTES = ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw", "lion", "paged_lion", "ademamix", "paged_ademamix")
"""Beginnings of names: they step on each number by itself too, in blocks of a flat row, which is what ZeRO gives them;
FSDP2's DTensors are unknown to them. All others look at whole matrices (adafactor, galore, apollo, muon, lomo)."""


@reads("distributed.strategy", "train.optim")
def optimizer_can_be_sharded(settings: Settings) -> list[Contradiction]:
    """torch's own can, wherever the cut is; bitsandbytes' under ZeRO."""
    strategy, optimizer = settings.recipe.distributed.strategy, settings.train("optim")
    if strategy not in (*_ZERO, "fsdp2") or optimizer is None or str(optimizer) in _TORCH:
        return []
    if strategy in _ZERO and str(optimizer).startswith(_BITSANDBYTES):
        return []
    message = f"is {optimizer}, whose state `distributed.strategy: {strategy}` cannot share out over processes."
    return [("train.optim", message, "Write `train.optim: adamw_torch_fused`, or `distributed.strategy: ddp`.")]


@reads("distributed.strategy", "adapter")
def quantized_weights_can_be_sharded(settings: Settings) -> list[Contradiction]:
    """DeepSpeed's ZeRO-3 cuts weights that are numbers; bitsandbytes' are packed, with constants beside them."""
    strategy, adapter = settings.recipe.distributed.strategy, settings.recipe.adapter
    if adapter.method != "qlora":
        return []
    bits = 4 if adapter.quantization is None else adapter.quantization.bits
    if strategy == "zero3":
        message = f"is zero3, which cannot share out the {bits}-bit weights of `adapter.method: qlora`."
        remedy = "Write fsdp2, which shares out 4-bit ones, or zero2, where each process holds all of them."
        return [("distributed.strategy", message, remedy)]
    if strategy == "fsdp2" and bits == 8:
        message = "is fsdp2, which cannot share out 8-bit weights."
        return [("distributed.strategy", message, "Write `adapter.quantization.bits: 4`, or `strategy: ddp`.")]
    return []


@reads("distributed")
def engine_is_named_for_several_machines(settings: Settings) -> list[Contradiction]:
    """One process is on one machine; where offloaded data lie says nothing while nothing is offloaded."""
    distributed = settings.recipe.distributed
    found: list[Contradiction] = []
    if distributed.nodes > 1 and distributed.strategy == "none":
        message = f"is none, which is one process, but `distributed.nodes` is {distributed.nodes}."
        found.append(("distributed.strategy", message, "Write ddp, or one of zero1, zero2, zero3 and fsdp2."))
    offload = distributed.offload
    if offload.nvme_path is not None and not (offload.optimizer or offload.parameters):
        message = "is set, but nothing is offloaded."
        remedy = "Write `offload.optimizer: true` or `offload.parameters: true` as well, or remove it."
        found.append(("distributed.offload.nvme_path", message, remedy))
    if offload.nvme_path is not None and distributed.strategy not in ("zero3",):
        message = f"is set, but `distributed.strategy: {distributed.strategy}` offloads to the host's memory alone."
        found.append(("distributed.offload.nvme_path", message, "Write `strategy: zero3`, or remove it."))
    return found


@reads("distributed.strategy", "distributed.wrap_classes")
def wrap_classes_are_of_fsdp2(settings: Settings) -> list[Contradiction]:
    """DDP wraps the model as a whole, DeepSpeed every module by itself."""
    distributed = settings.recipe.distributed
    if distributed.wrap_classes is None or distributed.strategy == "fsdp2":
        return []
    message = f"is set, but `distributed.strategy: {distributed.strategy}` does not shard by classes of layers."
    return [("distributed.wrap_classes", message, "Write `strategy: fsdp2`, or remove it.")]
