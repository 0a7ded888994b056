"""Which strategies of ``distributed`` this version launches; all can be planned."""

from __future__ import annotations

__all__ = ["LAUNCHED", "is_launched"]

LAUNCHED = ("auto", "none", "ddp")


def is_launched(strategy: str) -> bool:
    """Whether ``hf-efficient train`` starts a recipe with this ``distributed.strategy``."""
    return strategy in LAUNCHED
