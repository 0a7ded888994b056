"""Memory over the steps that a plan rehearses."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PlannedTimeline"]


@dataclass(frozen=True)
class PlannedTimeline:
    """What is allocated over the first two optimizer steps, in some hundred moments; columns of one length.

    Between two of them less may have been allocated, never more: each is the highest of its stretch.

    Attributes:
        events: allocations and frees up to each moment, from the start of the first step on.
        phases: that run at each moment.
        categories: bytes by use.
        second_step: events before the second step.
    """

    events: list[int]
    phases: list[str]
    categories: dict[str, list[int]]
    second_step: int
