"""What the tables about a recipe's variants say, in words.

A recipe by its variants on a terminal: where an optimizer step goes, and what each variant took.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.isolation import Isolation, StepPart, VariantOutcome
from hf_efficient.reporting.diagnosis import diagnosis_renderables
from hf_efficient.reporting.labels import tokens_per_second
from hf_efficient.text import count, share, short_seconds

_LABELS = {
    "forward": "model forward",
    "backward_optimizer": "backward and optimizer",
    "communication": "other processes",
    "data": "data",
    "instrumentation": "our recording",
    "logging": "logging",
    "evaluation": "evaluations",
    "checkpointing": "saves",
}


def part_label(name: str) -> str:
    """``backward and optimizer``."""
    return _LABELS.get(name, name)


def apart_rows(found: Isolation) -> list[tuple[str, str]]:
    """What was measured by itself: a label, and a sentence."""
    return [row for row in (_loader(found), _tokenisation(found), _micro_batch(found), _no_graph(found)) if row]


def variant_row(outcome: VariantOutcome) -> tuple[str, str, str, str, bool]:
    """Its name, how often it ran, its median step, what it is or why there is none, and whether it failed."""
    seconds = [one for run in outcome.runs for one in run.step_seconds]
    step = short_seconds(statistics.median(seconds)) if seconds else ""
    if outcome.left_out:
        return outcome.name, "", "", f"left out: {outcome.left_out}", False
    told = f"failed: {outcome.failure}" if outcome.failure else outcome.what
    return outcome.name, str(len(outcome.runs)), step, told, bool(outcome.failure)


def _loader(found: Isolation) -> tuple[str, str] | None:
    loader = found.loader
    if loader is None:
        return None
    told = f"{short_seconds(loader.step_seconds)} for the batches of a step"
    if loader.model_step_seconds is not None:
        told += f", where the model alone takes {short_seconds(loader.model_step_seconds)}"
    return "the loader alone", told


def _tokenisation(found: Isolation) -> tuple[str, str] | None:
    one = found.tokenisation
    if one is None:
        return None
    rates = f"{count(round(one.examples_per_second))} examples/s, {tokens_per_second(one.tokens_per_second)}"
    return "tokenisation alone", f"{rates}; reading alone {short_seconds(one.read_seconds)}"


def _micro_batch(found: Isolation) -> tuple[str, str] | None:
    line = found.micro_batch
    if line is None:
        return None
    part = share(min(1.0, line.fixed_seconds / line.seconds))
    whole = short_seconds(line.seconds)
    return "a micro-batch", f"{short_seconds(line.fixed_seconds)} before it holds a token, {part} of its {whole}"


def _no_graph(found: Isolation) -> tuple[str, str] | None:
    if found.forward_without_graph_seconds is None:
        return None
    alone = short_seconds(found.forward_without_graph_seconds)
    return "the forward", f"{alone} of a step where nothing is kept for a backward (torch.no_grad)"


_BAR = 10
_MUCH = 0.1


def isolation_renderables(found: Isolation) -> list[RenderableType]:
    """What to print, in order, within 80 columns.

    Args:
        found: the variants of a recipe.
    """
    return [
        _headline(found),
        _parts(found),
        *_part_notes(found),
        Text(),
        *_apart(found),
        _variants(found),
        *(Text(f"{note[:1].upper()}{note[1:]}.", "dim") for note in found.notes),
        Text(),
        *_diagnosis(found),
    ]


def _diagnosis(found: Isolation) -> Iterator[RenderableType]:
    """A step that the parts do not explain is not called a good one."""
    if found.diagnosis is None:
        return
    unexplained = found.unexplained_seconds / found.step_seconds
    if found.diagnosis.findings or unexplained < _MUCH:
        yield from diagnosis_renderables(found.diagnosis)
        return
    yield Text(f"No cause is clear: {share(unexplained)} of a step is unexplained.", "bold yellow")
    for one in found.diagnosis.abstentions:
        yield Text(f"Not judged: {one.rule}: {one.why}", "dim")


def _headline(found: Isolation) -> Text:
    rate = "" if found.tokens_per_second is None else f", {tokens_per_second(found.tokens_per_second)} with padding"
    text = Text(f"An optimizer step of {found.recipe}: {short_seconds(found.step_seconds)}{rate}", "bold")
    text.append(f"\nby difference of variants, {found.steps} steps each after {found.warm_up} of warm-up", "dim")
    return text


def _parts(found: Isolation) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("part of a step", no_wrap=True)
    for name in ("time", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("spread", no_wrap=True)
    for part in found.parts:
        nothing = part.low is not None and part.seconds == 0
        figures = (Text("no difference", "dim"), "", "") if nothing else _figures(found, part.seconds)
        table.add_row(part_label(part.name), *figures, _spread(part))
    table.add_row("unexplained", *_figures(found, found.unexplained_seconds), "")
    table.add_row(Text("in all", "bold"), short_seconds(found.step_seconds), "100.0%", "", "")
    return table


def _part_notes(found: Isolation) -> Iterator[Text]:
    """Why a part is not known, or less than its difference; a part within its spread has said so in the table."""
    for part in found.parts:
        if part.note and (part.seconds is None or part.low is None):
            yield Text(f"{part_label(part.name)}: {part.note}", "yellow")


def _figures(found: Isolation, seconds: float | None) -> tuple[str | Text, str, Text]:
    if seconds is None:
        return Text("not known", "yellow"), "", Text()
    part = seconds / found.step_seconds
    return _signed(seconds), f"{100 * part:.1f}%", Text("█" * round(_BAR * max(0.0, part)), "cyan")


def _spread(part: StepPart) -> Text:
    if part.low is None or part.high is None:
        return Text()
    return Text(f"{_signed(part.low)} to {_signed(part.high)}", "dim", overflow="ellipsis")


def _signed(seconds: float) -> str:
    return f"-{short_seconds(-seconds)}" if seconds < 0 else short_seconds(seconds)


def _apart(found: Isolation) -> Iterator[RenderableType]:
    rows = apart_rows(found)
    if not rows:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, told in rows:
        grid.add_row(Text(label, "bold"), Text(told))
    yield grid
    yield Text()


def _variants(found: Isolation) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("variant", "runs"):
        table.add_column(name, no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("")
    for one in found.variants:
        name, runs, step, told, failed = variant_row(one)
        table.add_row(name, runs, step, Text(told, "yellow" if failed else "dim"))
    return table
