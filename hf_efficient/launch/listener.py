"""What a run reports on its way, and how a terminal shows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.markup import escape
from tqdm.auto import tqdm

from hf_efficient.launch.checkpoints import EFFICIENCY
from hf_efficient.metrics.answers import Answer
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import Diagnosis
from hf_efficient.reporting import console as end
from hf_efficient.reporting.finish_run import REPORT_HTML
from hf_efficient.reporting.terminal import Console
from hf_efficient.text import counted, seconds


@dataclass(frozen=True)
class RunResult:
    """``steps`` also counts those before a resumption, ``train_seconds`` this start's training loop. ``before`` and
    ``after`` are metrics of the first and last evaluations; ``ended_early`` names the limit of the budget."""

    output_dir: Path
    steps: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    train_seconds: float
    merged_dir: Path | None = None
    ended_early: str | None = None
    training_loss: tuple[float, float] | None = None  # the first and the last that was logged


class RunListener:
    def stage(self, title: str, detail: str = "") -> None:
        """A stage of the run begins, or is done with ``detail``."""

    def ready(self, command: str) -> None:
        """Data and model are there. ``command`` started the run; empty where `hf-efficient train` did not."""

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        """The model answered prompts after ``step`` optimizer steps."""

    def finished(
        self, result: RunResult, account: RunAccount | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        """The run is over; account and diagnosis are None where nothing was recorded."""


class TerminalListener(RunListener):
    """Stages as they come; the answers, the account and the diagnosis in short when the run is over."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._first: Sequence[Answer] = ()
        self._last: Sequence[Answer] = ()

    def _print(self, *renderables: RenderableType, wrap: bool = False) -> None:
        """Print above the progress bars that are open, which a plain print would tear apart."""
        with self._console.capture() as captured:
            for renderable in renderables:
                self._console.print(renderable, soft_wrap=not wrap)
        tqdm.write(captured.get(), file=self._console.file, end="")

    def stage(self, title: str, detail: str = "") -> None:
        self._print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}")

    def ready(self, command: str) -> None:
        if command:
            self._print(escape(f"$ {command}"))

    def answers(self, step: int, answers: Sequence[Answer]) -> None:
        if step == 0:
            self._first = answers
        else:
            self._last = answers

    def finished(
        self, result: RunResult, account: RunAccount | None = None, diagnosis: Diagnosis | None = None
    ) -> None:
        parts: list[RenderableType] = ["", *end.answer_rows(self._first, self._last)]
        parts += end.loss_table(result.before, result.after, result.training_loss)
        if result.ended_early is not None:
            parts.append(f"[bold yellow]The budget ended the run: {escape(result.ended_early)}.[/bold yellow]")
        if account is None:
            parts.append(f"{counted(result.steps, 'step')} done, in {seconds(result.train_seconds)}.")
        else:
            parts += end.headline(account)
        if diagnosis is not None:
            parts += [*end.short_findings(diagnosis), ""]
        page = result.output_dir / EFFICIENCY / REPORT_HTML
        where = end.where(result.output_dir, result.merged_dir, page if page.is_file() else None)
        self._print(*parts, where, wrap=True)
