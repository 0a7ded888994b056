"""What a run says while it goes on, and how that is shown on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
    """What a run came to; ``steps`` also counts those before a resumption, ``train_seconds`` the training loop of this
    start. ``before`` and ``after`` are metrics of the first and last evaluations; ``ended_early`` names the limit of
    the budget."""

    output_dir: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    train_seconds: float
    merged_dir: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict)  # what lies where, with a word on each
    ended_early: str | None = None


class RunListener:
    def stage(self, title: str, detail: str = "") -> None:
        """A stage of the run begins, or is done with ``detail``."""

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        """The model answered prompts after ``step`` optimizer steps."""

    def finished(self, result: RunResult) -> None:
        """The run is over."""

    def account(self, account: RunAccount) -> None:
        """Where its time, tokens and memory went; not called where nothing was recorded."""

    def diagnosis(self, diagnosis: Diagnosis) -> None:
        """What slowed it down, and what to change; not called where nothing was recorded."""


_LONGEST_ANSWER = 600


class TerminalListener(RunListener):
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def _print(self, *renderables: RenderableType, wrap: bool = False) -> None:
        """Print above the progress bars that are open, which a plain print would tear apart."""
        with self._console.capture() as captured:
            for renderable in renderables:
                self._console.print(renderable, soft_wrap=not wrap)
        tqdm.write(captured.get(), file=self._console.file, end="")

    def stage(self, title: str, detail: str = "") -> None:
        self._print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}")

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
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
        if result.after:
            self._print(_metrics_table(result), wrap=True)
        if result.ended_early is not None:
            self._print(f"[bold yellow]The budget ended the run: {escape(result.ended_early)}.[/bold yellow]")
        took = f"this training took {seconds(result.train_seconds)}, its evaluations and checkpoints included"
        self._print(f"{result.steps} steps are done; {took}.", "Written:")
        for path, meaning in result.written.items():
            self._print(f"  {escape(path)}  [dim]{escape(meaning)}[/dim]")

    def account(self, account: RunAccount) -> None:
        self._print(*account_renderables(account), wrap=True)

    def diagnosis(self, diagnosis: Diagnosis) -> None:
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
