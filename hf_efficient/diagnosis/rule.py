"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hf_efficient.diagnosis.case import Case
from hf_efficient.records.findings import Abstention, Finding

__all__ = ["MATTERS", "NO_STEPS", "Rule", "Verdict", "abstains"]

Verdict = Finding | Abstention | None
"""None: looked, and found nothing."""

Rule = Callable[[Case], Verdict]
"""A function named as its rule."""

MATTERS: Final = 0.05
"""Below this share of the loop's time a cost is no warning."""

NO_STEPS: Final = "no optimizer step is recorded"


def abstains(rule: str, why: str, instrument: str = "") -> Abstention:
    """A rule that cannot judge; ``instrument`` names what would give the evidence."""
    return Abstention(rule, why, instrument)
