"""How a run's model is spread over its ranks."""

from __future__ import annotations

from typing import Literal

from hf_efficient.diagnosis.case import Case

__all__ = ["Strategy", "strategy_of"]

Strategy = Literal["none", "ddp", "zero1", "zero2", "zero3", "fsdp2", "deepspeed"]
"""Those of recipes, and DeepSpeed by a configuration of its own, whose stage is not known here."""


def strategy_of(case: Case) -> Strategy:
    """As the recipe says, else as the arguments tell; ``ddp`` is what several ranks do by themselves."""
    if len(case.account.ranks) < 2:
        return "none"
    named = case.recipe.get("distributed.strategy") if case.recipe is not None else None
    if named in ("ddp", "zero1", "zero2", "zero3", "fsdp2"):
        return named
    if case.argument("deepspeed"):
        return "deepspeed"
    return "fsdp2" if case.argument("fsdp") else "ddp"
