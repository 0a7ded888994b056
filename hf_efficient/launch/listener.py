"""What a run says while it goes on: the interface between running a recipe and showing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hf_efficient.metrics.answers import Answer
from hf_efficient.records import RunAccount
from hf_efficient.records.findings import Diagnosis

__all__ = ["RunListener", "RunResult", "SilentListener"]


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        output_dir: where everything was written.
        steps: optimizer steps done in all, those before a resumption included.
        before: metrics of the evaluation before the first step (``train.eval_on_start``); empty without one.
        after: metrics of the evaluation after the last step; empty without one.
        train_seconds: wall time of the training loop of this start, evaluations and saves inside it included.
        merged_dir: the merged model, where the recipe asked for one.
        written: what was written, with one word on each.
        ended_early: in words, which limit of the budget ended the training; None where it came to its end.
    """

    output_dir: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    train_seconds: float
    merged_dir: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict)
    ended_early: str | None = None


class RunListener(Protocol):
    """Receives a run's progress on its main process; must not raise."""

    def stage(self, title: str, detail: str = "") -> None:
        """A stage of the run begins, or is done with ``detail``."""

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        """The model answered prompts after ``step`` optimizer steps."""

    def finished(self, result: RunResult) -> None:
        """The run is over."""

    def account(self, account: RunAccount) -> None:
        """Where its time, tokens and memory went; not told where nothing was recorded."""

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        """What slowed it down, and what to change; not told where nothing was recorded."""


class SilentListener:
    """Says nothing."""

    def stage(self, title: str, detail: str = "") -> None:
        return None

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        return None

    def finished(self, result: RunResult) -> None:
        return None

    def account(self, account: RunAccount) -> None:
        return None

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        return None
