"""What a recipe says of ``distributed``, as the arithmetic's own settings."""

from __future__ import annotations

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.estimate.parallelism import Sharding, Strategy
from hf_efficient.recipe.schema import Recipe

__all__ = ["sharding_of"]


def sharding_of(recipe: Recipe, processes: int | None = None) -> Sharding:
    """How the recipe's run is spread; ``processes: auto`` counts for one.

    Args:
        recipe: the recipe.
        processes: that train; default: the recipe's.

    Raises:
        RecipeError: the strategy cannot have as many processes, or cannot offload what is to be offloaded. A recipe
            that was loaded has been checked.
    """
    distributed = recipe.distributed
    ranks = processes or (1 if distributed.processes == "auto" else distributed.processes)
    strategy: Strategy = "none" if ranks == 1 else "ddp"
    if distributed.strategy not in ("auto", strategy):
        strategy = "none" if distributed.strategy == "ddp" and ranks == 1 else distributed.strategy  # type: ignore[assignment]
    try:
        return Sharding(
            strategy,
            ranks,
            offload_optimizer=distributed.offload.optimizer,
            offload_parameters=distributed.offload.parameters,
            micro_batches=int(recipe.train.get("gradient_accumulation_steps", 1)),
        )
    except ValueError as error:
        raise RecipeError([Problem(str(recipe.path or recipe.name), "distributed", f"{error}.")]) from error
