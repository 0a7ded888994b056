"""What cannot be taken apart by leaving parts of a step out."""

from __future__ import annotations

from hf_efficient.errors import SetupError
from hf_efficient.recipe.schema import Recipe

__all__ = ["check_whole_models"]


def check_whole_models(recipe: Recipe) -> None:
    """Refuse a model that is spread over processes: one of them alone, a variant, is not the same computation.

    Raises:
        SetupError: the recipe shards.
    """
    strategy = recipe.distributed.strategy
    if strategy not in ("auto", "none", "ddp"):
        raise SetupError(
            f"--isolate: distributed.strategy is {strategy}, and one process alone does not hold the model. Write "
            "distributed.strategy=ddp with a model that fits one process, or diagnose a run of this recipe."
        )
