"""``distributed.wrap_classes`` against the classes of a model's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.errors import ModelError
from hf_efficient.recipe.words import nearest

__all__ = ["check_wrap_classes"]


def check_wrap_classes(model: Any, classes: Sequence[str] | None) -> None:
    """Every class is in the model; accelerate would say so once the processes have met, and not which there are.

    Args:
        model: with its adapter or without, on any device.
        classes: of the recipe; None: the model's own, which are there.

    Raises:
        ModelError: one is not; names those that are.
    """
    every = {type(module).__name__ for module in model.modules()} if classes else set()
    missing = next((name for name in classes or () if name not in every), None)
    if missing is None:
        return
    there = _layer_classes(model)
    meant = nearest(missing, there)
    remedy = f"Did you mean {meant}? " if meant is not None else ""
    raise ModelError(
        f"distributed.wrap_classes: {missing} is no class of a layer of this model. {remedy}Its own: "
        f"{', '.join(there)}."
    )


def _layer_classes(model: Any) -> list[str]:
    """Those that a model's class says not to split, then the others that hold layers, in the order of the model."""
    own = [name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()]
    parts = [
        type(module).__name__
        for module in model.modules()
        if any(module.children()) and type(module).__module__.partition(".")[0] not in ("torch", "peft")
    ]
    here = {type(module).__name__ for module in model.modules()}
    return list(dict.fromkeys([*(name for name in own if name in here), *parts]))
