"""What DeepSpeed's buffers for parameters on NVMe must hold."""

from __future__ import annotations

import math

from hf_efficient.recipe.schema import Recipe

__all__ = ["largest_share"]


def largest_share(recipe: Recipe, processes: int) -> int:
    """Elements of the largest parameter on one rank, where its way leads over NVMe; else 0.

    Args:
        recipe: the resolved recipe.
        processes: that share it, on all machines.

    Raises:
        ModelError: the model's architecture is not known.
    """
    offload = recipe.distributed.offload
    if not offload.parameters or offload.nvme_path is None:
        return 0
    from hf_efficient.planning.largest_parameter import largest_parameter

    return math.ceil(largest_parameter(recipe.model) / processes)
