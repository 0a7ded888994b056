"""What became of a prediction in the run that tested it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Confirmation", "Verdict"]

Verdict = Literal["confirmed", "smaller", "larger", "retracted", "unknown"]
"""``confirmed``: at least half and at most twice of what was predicted came; ``unknown``: it cannot be told."""


@dataclass(frozen=True)
class Confirmation:
    """One prediction of a remedy that this run applied.

    Attributes:
        rule: whose remedy it is.
        run: output directory of the run that it was predicted from.
        of: ``time``: of the training loop per token that is no padding; ``memory``: at the peak; ``finding``: nothing
            was predicted but that the finding goes.
        predicted: of time the share that is saved, of memory the bytes; None of a finding.
        achieved: the same; below 0: it takes more. None where it cannot be told.
        spread: half of the interval in which a share of time lies, by the spread of the steps of both runs; None where
            it is not known, and of memory.
        verdict: what became of it.
        why: the reason, where it is not confirmed.
    """

    rule: str
    run: str
    of: Literal["time", "memory", "finding"]
    predicted: float | None
    achieved: float | None
    spread: float | None
    verdict: Verdict
    why: str = ""
