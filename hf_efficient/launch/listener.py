"""What a run says while it goes on: the interface between running a recipe and showing it.

A run's progress on the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from tqdm.auto import tqdm

from hf_efficient.metrics.answers import Answer
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import Diagnosis
from hf_efficient.reporting.console import account_renderables
from hf_efficient.reporting.diagnosis import diagnosis_renderables
from hf_efficient.text import seconds


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


_LONGEST_ANSWER = 600


class TerminalListener:
    """Prints the stages of a run, its answers and its results, beside the Trainer's progress bars.

    Implements ``RunListener``.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def _print(self, *renderables: RenderableType, wrap: bool = False) -> None:
        """Print above the progress bars that are open, which a plain print would tear apart."""
        with self._console.capture() as captured:
            for renderable in renderables:
                self._console.print(renderable, soft_wrap=not wrap)
        tqdm.write(captured.get(), file=self._console.file, end="")

    def stage(self, title: str, detail: str = "") -> None:
        """A line per stage: its title in a fixed column, what it is about beside it."""
        self._print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}")

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        """A panel per answer: the question, what is expected, what the model wrote."""
        when = "before training" if step == 0 else f"after {step} steps"
        for answer in answers:
            grid = Table.grid(padding=(0, 2))
            grid.add_column(style="dim", no_wrap=True)
            grid.add_column()
            grid.add_row("asked", escape(_short(answer.question)))
            grid.add_row("expected", escape(_short(answer.expected)))
            grid.add_row("answered", escape(_short(answer.generated)))
            self._print(Panel(grid, title=f"Answer {when}", title_align="left"), wrap=True)

    def finished(self, result: RunResult) -> None:
        """The metrics before and after, and where everything was written."""
        if result.after:
            self._print(_metrics_table(result), wrap=True)
        if result.ended_early is not None:
            self._print(f"[bold yellow]The budget ended the run: {escape(result.ended_early)}.[/bold yellow]")
        took = f"this training took {seconds(result.train_seconds)}, its evaluations and checkpoints included"
        self._print(f"{result.steps} steps are done; {took}.", "Written:")
        for path, meaning in result.written.items():
            self._print(f"  {escape(path)}  [dim]{escape(meaning)}[/dim]")

    def account(self, account: RunAccount) -> None:
        """The account of the run, as `hf-efficient report` shows it."""
        self._print(*account_renderables(account), wrap=True)

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        """The findings in short, as `hf-efficient diagnose` shows them at length."""
        self._print("", *diagnosis_renderables(diagnosis, evidence=False), wrap=True)


def _metrics_table(result: RunResult) -> Table:
    table = Table()
    table.add_column("evaluation")
    for heading in ("before", "after", "change") if result.before else ("after training",):
        table.add_column(heading, justify="right")
    for name, after in result.after.items():
        before = result.before.get(name)
        change = "" if not before else f"{100 * (after - before) / abs(before):+.1f}%"
        cells = ["" if before is None else f"{before:.4g}", f"{after:.4g}", change]
        table.add_row(name, *(cells if result.before else cells[1:2]))
    return table


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_ANSWER else text[:_LONGEST_ANSWER] + " ..."
