"""A listener that keeps what a run says."""

from collections.abc import Sequence

from hf_efficient.launch.listener import RunListener, RunResult
from hf_efficient.metrics.answers import Answer
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import Diagnosis

__all__ = ["Notes"]


class Notes(RunListener):
    """Stages as title and detail, answers by step, the result, the account."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, str]] = []
        self.shown: list[tuple[int, list[Answer]]] = []
        self.result: RunResult | None = None
        self.told: RunAccount | None = None

    def stage(self, title: str, detail: str = "") -> None:
        self.stages.append((title, detail))

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        self.shown.append((step, list(answers)))

    def finished(
        self, result: RunResult, account: RunAccount | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        self.result, self.told = result, account
