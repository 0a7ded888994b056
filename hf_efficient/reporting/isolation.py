"""A recipe by its variants on a terminal: where an optimizer step goes, and what each variant took."""

import statistics
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records.isolation import Isolation, StepPart, VariantOutcome
from hf_efficient.reporting.diagnosis import diagnosis_renderables
from hf_efficient.reporting.labels import tokens_per_second
from hf_efficient.reporting.terminal import grid, share_bar, table
from hf_efficient.text import count, share, short_seconds

_BAR = 10
_MUCH = 0.1
_LABELS = {
    "forward": "model forward",
    "backward_optimizer": "backward and optimizer",
    "communication": "other processes",
    "instrumentation": "our recording",
    "evaluation": "evaluations",
    "checkpointing": "saves",
}


def isolation_renderables(found: Isolation) -> list[RenderableType]:
    apart = _apart_rows(found)
    beside: list[RenderableType] = [grid(apart), Text()] if apart else []
    return [
        _headline(found),
        _parts(found),
        *_part_notes(found),
        Text(),
        *beside,
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


def _label(name: str) -> str:
    return _LABELS.get(name, name)


def _parts(found: Isolation) -> Table:
    made = table("part of a step", "time", "share", "", "spread", words=(0, 3))
    made.columns[4].justify = "left"
    for part in found.parts:
        nothing = part.low is not None and part.seconds == 0
        figures = (Text("no difference", "dim"), "", "") if nothing else _figures(found, part.seconds)
        made.add_row(_label(part.name), *figures, _spread(part))
    made.add_row("unexplained", *_figures(found, found.unexplained_seconds), "")
    made.add_row(Text("in all", "bold"), short_seconds(found.step_seconds), "100.0%", "", "")
    return made


def _part_notes(found: Isolation) -> Iterator[Text]:
    for part in found.parts:
        if part.note and (part.seconds is None or part.low is None):
            yield Text(f"{_label(part.name)}: {part.note}", "yellow")


def _figures(found: Isolation, seconds: float | None) -> tuple[str | Text, str, Text]:
    if seconds is None:
        return Text("not known", "yellow"), "", Text()
    part = seconds / found.step_seconds
    return _signed(seconds), f"{100 * part:.1f}%", share_bar(part, _BAR)


def _spread(part: StepPart) -> Text:
    if part.low is None or part.high is None:
        return Text()
    return Text(f"{_signed(part.low)} to {_signed(part.high)}", "dim", overflow="ellipsis")


def _signed(seconds: float) -> str:
    return f"-{short_seconds(-seconds)}" if seconds < 0 else short_seconds(seconds)


def _apart_rows(found: Isolation) -> list[tuple[str, str]]:
    rows = []
    loader, tokenised, line = found.loader, found.tokenisation, found.micro_batch
    if loader is not None:
        text = f"{short_seconds(loader.step_seconds)} for the batches of a step"
        if loader.model_step_seconds is not None:
            text += f", where the model alone takes {short_seconds(loader.model_step_seconds)}"
        rows.append(("the loader alone", text))
    if tokenised is not None:
        rates = f"{count(round(tokenised.examples_per_second))} examples/s"
        rates += f", {tokens_per_second(tokenised.tokens_per_second)}"
        rows.append(("tokenisation alone", f"{rates}; reading alone {short_seconds(tokenised.read_seconds)}"))
    if line is not None:
        of = f"{share(min(1.0, line.fixed_seconds / line.seconds))} of its {short_seconds(line.seconds)}"
        rows.append(("a micro-batch", f"{short_seconds(line.fixed_seconds)} before it holds a token, {of}"))
    if found.forward_without_graph_seconds is not None:
        alone = short_seconds(found.forward_without_graph_seconds)
        text = f"{alone} of a step where nothing is kept for a backward (torch.no_grad)"
        rows.append(("the forward", text))
    return rows


def _variants(found: Isolation) -> Table:
    made = table("variant", "runs", "step", "", words=(0, 1, 3))
    for one in found.variants:
        made.add_row(Text(one.name, no_wrap=True), *_variant_cells(one))
    return made


def _variant_cells(one: VariantOutcome) -> tuple[str, str, Text]:
    if one.left_out:
        return "", "", Text(f"left out: {one.left_out}", "dim")
    seconds = [value for run in one.runs for value in run.step_seconds]
    step = short_seconds(statistics.median(seconds)) if seconds else ""
    note = Text(f"failed: {one.failure}", "yellow") if one.failure else Text(one.what, "dim")
    return str(len(one.runs)), step, note
