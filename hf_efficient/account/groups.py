"""Phases put together by the part of a run that they belong to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hf_efficient.records import CLOSING_PHASES, COARSE_PHASES, STARTUP_PHASES, STEP_PHASES

__all__ = ["GROUPS", "PhaseGroup", "grouped"]

_APART = ("evaluation", "checkpointing")
GROUPS: dict[str, tuple[str, ...]] = {
    "before training": tuple(name for name in STARTUP_PHASES if name != "compilation"),
    "training": tuple(name for name in ("compilation", *STEP_PHASES, *COARSE_PHASES) if name not in _APART),
    "evaluations and checkpoints": _APART,
    "after training": CLOSING_PHASES,
    "unattributed": ("unattributed",),
}
"""Every phase, by the part of a run that it belongs to."""


@dataclass(frozen=True)
class PhaseGroup:
    """One part of a run.

    Attributes:
        name: of ``GROUPS``, or ``other`` for phases of a newer version.
        total: sum over its phases.
        phases: those that occurred.
    """

    name: str
    total: float
    phases: dict[str, float]


def grouped(by_phase: Mapping[str, float]) -> list[PhaseGroup]:
    """Seconds, dollars or joules by phase, put together; parts in which nothing occurred are left out."""
    known = {phase for phases in GROUPS.values() for phase in phases}
    parts = {**GROUPS, "other": tuple(name for name in by_phase if name not in known)}
    found = []
    for name, phases in parts.items():
        held = {phase: by_phase[phase] for phase in phases if phase in by_phase}
        if held:
            found.append(PhaseGroup(name, math.fsum(held.values()), held))
    return found
