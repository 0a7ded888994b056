"""A run's progress on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from hf_efficient.launch.listener import RunResult
from hf_efficient.metrics.answers import Answer
from hf_efficient.units import seconds

__all__ = ["TerminalListener"]

_LONGEST_ANSWER = 600


class TerminalListener:
    """Prints the stages of a run, its answers and its results. Implements ``RunListener``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=False)

    def stage(self, title: str, detail: str = "") -> None:
        """A line per stage: its title in a fixed column, what it is about beside it."""
        self._console.print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}", soft_wrap=True)

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
            self._console.print(Panel(grid, title=f"Answer {when}", title_align="left"))

    def finished(self, result: RunResult) -> None:
        """The metrics before and after, and where everything was written."""
        if result.after:
            self._console.print(_metrics_table(result))
        self._console.print(f"{result.steps} steps, {seconds(result.train_seconds)} in the training loop.")
        self._console.print("Written:")
        for path, meaning in result.written.items():
            self._console.print(f"  {escape(path)}  [dim]{escape(meaning)}[/dim]", soft_wrap=True)


def _metrics_table(result: RunResult) -> Table:
    table = Table(title="Evaluation", title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    for name, after in result.after.items():
        before = result.before.get(name)
        change = "" if not before else f"{100 * (after - before) / abs(before):+.1f}%"
        table.add_row(name, "" if before is None else f"{before:.4g}", f"{after:.4g}", change)
    return table


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_ANSWER else text[:_LONGEST_ANSWER] + " ..."
