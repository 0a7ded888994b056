"""Ways to spread a model over several devices."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["models_are_not_sharded", "offload_fits_the_strategy", "one_process_is_not_spread"]


@reads("train.fsdp", "train.fsdp_config", "train.deepspeed")
def models_are_not_sharded(settings: Settings) -> list[Contradiction]:
    """The command that is derived from a recipe starts data-parallel processes, each with the whole model."""
    message = "is set, but this version trains with plain data parallelism: each process holds the whole model."
    remedy = (
        "Remove it; `distributed.processes` says how many processes train, and `adapter.method: qlora` needs least."
    )
    found = [(f"train.{name}", message, remedy) for name in ("fsdp", "fsdp_config") if settings.train(name)]
    if settings.train("deepspeed"):
        message = "is not supported by a recipe yet; this version trains with plain data parallelism."
        found.append(("train.deepspeed", message, "Remove it; `distributed.processes` says how many processes train."))
    return found


@reads("distributed")
def one_process_is_not_spread(settings: Settings) -> list[Contradiction]:
    """``none`` is one process."""
    distributed = settings.recipe.distributed
    if distributed.strategy != "none" or distributed.processes == 1:
        return []
    message = f"is none, which is one process, but `distributed.processes` is {distributed.processes}."
    return [("distributed.strategy", message, "Write ddp, or one of zero1, zero2, zero3 and fsdp2; or processes: 1.")]


@reads("distributed", "train.optim")
def offload_fits_the_strategy(settings: Settings) -> list[Contradiction]:
    """DeepSpeed offloads the optimizer by itself, and takes its own AdamW for that; torch with the weights alone."""
    distributed, optimizer = settings.recipe.distributed, str(settings.train("optim"))
    strategy, offload = distributed.strategy, distributed.offload
    found: list[Contradiction] = []
    if offload.optimizer and strategy == "fsdp2":
        message = "is set, but `distributed.strategy: fsdp2` offloads the optimizer's state with the weights alone."
        found.append(("distributed.offload.optimizer", message, "Write `parameters: true` in its place."))
    elif offload.optimizer and strategy not in ("zero1", "zero2", "zero3"):
        message = f"is set, but `distributed.strategy: {strategy}` cannot offload it."
        found.append(("distributed.offload.optimizer", message, "Write `strategy: zero2` (or zero1, zero3)."))
    elif offload.optimizer and optimizer not in ("adamw_torch", "adamw_torch_fused"):
        message = f"is set, but DeepSpeed steps on the host with its own AdamW, and `train.optim` is {optimizer}."
        found.append(("distributed.offload.optimizer", message, "Write `train.optim: adamw_torch`, or remove it."))
    if offload.parameters and strategy not in ("zero3", "fsdp2"):
        message = f"is set, but under `distributed.strategy: {strategy}` each process needs the whole weights."
        found.append(("distributed.offload.parameters", message, "Write `strategy: zero3` or `strategy: fsdp2`."))
    return found
