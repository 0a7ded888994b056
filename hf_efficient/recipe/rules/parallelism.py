"""Ways to spread a model over several devices."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["models_are_not_sharded"]


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
