"""A listener that keeps what a run says."""

from collections.abc import Sequence

from hf_efficient.launch.listener import RunListener, RunResult
from hf_efficient.metrics.answers import Answer
from hf_efficient.records.account import RunAccount

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

    def finished(self, result: RunResult) -> None:
        self.result = result

    def account(self, account: RunAccount) -> None:
        self.told = account
