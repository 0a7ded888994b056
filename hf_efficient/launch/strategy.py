"""Whether this version can launch what a recipe says of ``distributed``."""

from __future__ import annotations

from hf_efficient.errors import SetupError
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.strategies import is_launched

__all__ = ["check_launchable"]


def check_launchable(recipe: Recipe) -> None:
    """Refuse a strategy that can be planned alone, before anything is loaded for it.

    Raises:
        SetupError: the recipe spreads the model over its processes, or offloads parts of it to the host.
    """
    distributed = recipe.distributed
    said = recipe.provenance.get("distributed.strategy")
    where = f"{said}: " if said is not None and said.source != "default" else ""
    if not is_launched(distributed.strategy):
        raise SetupError(
            f"{where}distributed.strategy: {distributed.strategy} can be planned (`hf-efficient plan`), but not "
            "launched yet. Write distributed.strategy=ddp, where each process holds the whole model, and "
            "distributed.offload.optimizer=false distributed.offload.parameters=false."
        )
