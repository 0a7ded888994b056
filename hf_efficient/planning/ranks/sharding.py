"""What a recipe says of ``distributed``, as the arithmetic's own settings."""

from __future__ import annotations

from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.estimate.parallelism import ZERO, Sharding, Strategy
from hf_efficient.recipe.rules.distributed import planned_processes
from hf_efficient.recipe.schema import Recipe


def model_width(config: Any) -> int | None:
    """The width by which transformers sets what DeepSpeed's configuration leaves ``auto``; None: it would refuse.

    Source: ``HfTrainerDeepSpeedConfig.trainer_config_finalize`` (transformers 5.23, ``integrations/deepspeed.py``).

    Args:
        config: of the model.
    """
    places: tuple[Any, ...] = (config, getattr(config, "text_config", None))
    for one in places:
        if hasattr(one, "hidden_size"):
            return int(one.hidden_size)
        if hasattr(one, "hidden_sizes"):
            return int(max(one.hidden_sizes))
    return None


def sharding_of(recipe: Recipe, processes: int | None = None, width: int | None = None) -> Sharding:
    """How the recipe's run is spread; ``processes: auto`` counts for one on each machine.

    Args:
        recipe: the recipe.
        processes: that train; default: the recipe's.
        width: of the model, by which a launch sets DeepSpeed's buckets; default: DeepSpeed's own sizes.

    Raises:
        RecipeError: the strategy cannot have as many processes, or cannot offload what is to be offloaded. A recipe
            that was loaded has been checked.
    """
    distributed = recipe.distributed
    ranks = processes or planned_processes(recipe)
    strategy: Strategy = "none" if ranks == 1 else "ddp"
    if distributed.strategy not in ("auto", strategy):
        strategy = "none" if distributed.strategy == "ddp" and ranks == 1 else distributed.strategy  # type: ignore[assignment]
    try:
        return Sharding(
            strategy,
            ranks,
            offload_optimizer=distributed.offload.optimizer,
            offload_parameters=distributed.offload.parameters,
            to_disk=distributed.offload.nvme_path is not None,
            micro_batches=int(recipe.train.get("gradient_accumulation_steps", 1)),
            **_as_launched(strategy, width),
        )
    except ValueError as error:
        raise RecipeError([Problem(str(recipe.path or recipe.name), "distributed", f"{error}.")]) from error


def _as_launched(strategy: Strategy, width: int | None) -> dict[str, Any]:
    """What ``launch.engines.deepspeed_config`` tells DeepSpeed, its ``auto`` filled in; a test holds them together."""
    if strategy not in ZERO:
        return {}
    told: dict[str, Any] = {"overlap_comm": True}
    if width is not None:
        told["bucket_elements"] = width * width
        if strategy == "zero3":
            told |= {"prefetch_elements": int(0.9 * width * width), "persistent_elements": 10 * width}
    return told
