"""Ways to spread a model over several devices."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["models_are_not_sharded", "offload_fits_the_strategy", "one_process_is_not_spread"]


@reads("train.fsdp", "train.fsdp_config", "train.deepspeed")
def models_are_not_sharded(settings: Settings) -> list[Contradiction]:
    """The engine is named in one place, from which the launch, its checks and the plan are derived."""
    message = (
        "is set, but `distributed.strategy` says how a recipe's model is spread, and the launch is derived from it."
    )
    remedies = {
        "fsdp": "fsdp2",
        "fsdp_config": "fsdp2",
        "deepspeed": "zero2` (zero1, zero3), with `distributed.offload",
    }
    return [
        (f"train.{name}", message, f"Remove it, and write `distributed.strategy: {instead}`.")
        for name, instead in remedies.items()
        if settings.train(name)
    ]


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
