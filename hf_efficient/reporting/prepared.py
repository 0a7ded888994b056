"""Data on a terminal: the examples of a recipe with their targets; and what `hf-efficient prepare` did, as a funnel
whose rows the page has too, a line for each stage, and facts for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from hf_efficient.curation.worth import TrainingRate
from hf_efficient.records.prepared import HELD_OUT, PreparedFacts, PreparedSet, StageFunnel
from hf_efficient.reporting.terminal import Console, FoundTable, drawn, grid
from hf_efficient.text import count, counted, seconds, share, usd

if TYPE_CHECKING:
    from hf_efficient.data.look import DataLook, ShownExample, Span

_SHORT = ("stage", "rows out", "tokens out", "less", "time", "saves")


@contextmanager
def stage_bars() -> Iterator[Callable[[str, int, int | None, StageFunnel | None], None]]:
    """Reports progress on standard error: a line for each stage that is done; on a terminal, a bar with a forecast."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=None)

        def tell(stage: str, rows: int, total: int | None, done: StageFunnel | None) -> None:
            if rows == 0:
                bars.reset(task, total=total, description=stage.replace("_", " "))
            bars.update(task, completed=rows, total=total)
            if done is not None:
                bars.console.print(stage_line(done), highlight=False, markup=False, soft_wrap=True)

        yield tell


def stage_line(stage: StageFunnel) -> str:
    removed = stage.rows_in - stage.rows_out
    done = [f"{count(stage.rows_out)} of {counted(stage.rows_in, 'row')}"]
    done += [f"{count(stage.changed)} changed"] * bool(stage.changed)
    done += [f"{count(removed)} removed: {most_frequent(stage)}"] * bool(removed > 0 and stage.reasons)
    return f"{'; '.join([f'{stage_label(stage)}: ' + ', '.join(done), *stage.notes])} ({seconds(stage.seconds)})"


def most_frequent(stage: StageFunnel) -> str:
    if not stage.reasons:
        return ""
    reason, times = next(iter(stage.reasons.items()))
    return reason if len(stage.reasons) == 1 else f"mostly {reason} ({count(times)})"


def removed_tokens(stage: StageFunnel) -> int:
    """What is not trained on because of a stage that judges rows which somebody gave."""
    return 0 if stage.name in (HELD_OUT, "blend") or stage.is_synthetic else stage.tokens_in - stage.tokens_out


def stage_label(stage: StageFunnel) -> str:
    return stage.name.replace("_", " ").replace(".", ": ")


def funnel_table(prepared: PreparedSet, rate: TrainingRate, *, whole: bool) -> FoundTable:
    """A row for each stage; ``saves``: what its removed tokens would cost in each epoch. A terminal gets the half."""
    rows = []
    for stage in prepared.stages:
        less = removed_tokens(stage)
        cost, saved = rate.usd(stage.seconds), rate.usd(rate.seconds(less)) if less else None
        cost = cost if not stage.usd else (cost or 0.0) + stage.usd
        row = {
            "stage": stage_label(stage),
            "rows in": count(stage.rows_in),
            "rows out": count(stage.rows_out),
            "tokens out": count(stage.tokens_out),
            "less": share(less / stage.tokens_in) if less else "",
            "time": seconds(stage.seconds),
            "cost": "" if cost is None else usd(cost),
            "saves": "" if saved is None else usd(saved),
            "why": most_frequent(stage),
        }
        rows.append(row if whole else {name: row[name] for name in _SHORT})
    return FoundTable(tuple(rows[0]), [tuple(row.values()) for row in rows], words=(0, 8) if whole else (0,))


def source_table(prepared: PreparedSet) -> FoundTable:
    rows = [(one.key, one.path, count(one.rows), count(one.tokens), f"{one.epochs:.3g}") for one in prepared.sources]
    return FoundTable(("source", "path", "rows", "tokens", "epochs"), rows, words=(0, 1))


def worth_sentence(prepared: PreparedSet, rate: TrainingRate) -> str:
    """What an epoch costs less; in words why it is not known."""
    less = sum(map(removed_tokens, prepared.stages))
    if not less:
        return "No token was removed."
    told, time = f"{count(less)} tokens are not trained on", rate.seconds(less)
    money = rate.usd(time)
    if time is None:
        return f"{told}; what they would cost is not known: {rate.source}."
    saved = f"{told}, which saves {seconds(time)}{'' if money is None else f' and {usd(money)}'} in each epoch"
    return f"{saved} ({rate.source}){'; cost.price_usd_per_hour is not set' if money is None else ''}."


def prepared_renderables(
    prepared: PreparedSet, folder: Path, rate: TrainingRate, *, fresh: bool
) -> Iterator[RenderableType]:
    yield drawn(funnel_table(prepared, rate, whole=False))
    if len(prepared.sources) > 1:
        yield ""
        yield drawn(source_table(prepared))
    yield f"\n{worth_sentence(prepared, rate)}"
    drawn_rows = sum(one.rows_in - one.rows_out for one in prepared.stages if one.name == HELD_OUT)
    held = f", {count(drawn_rows)} rows held out" if drawn_rows else ""
    size = f"{counted(prepared.rows, 'row')}, {count(prepared.tokens)} tokens{held}"
    yield f"{folder} {'is up to date' if fresh else 'is written'}: {size}."


def run_facts(prepared: PreparedSet, folder: Path) -> PreparedFacts:
    """For the records of a run that trains on it."""
    first, less = prepared.stages[0], sum(map(removed_tokens, prepared.stages))
    return PreparedFacts(
        str(folder), first.rows_in, prepared.rows, first.tokens_in, prepared.tokens, less, prepared.seconds
    )


_TARGET = "bold green"
_MOST_CHARACTERS = 600  # of a span; the middle is left out, so that the borders of the targets stay in sight


def data_renderables(look: DataLook, *, colour: bool) -> Iterator[RenderableType]:
    """Examples, then counts; without ``colour`` targets stand in brackets."""
    if look.shown and not look.generations:
        how = Text("in green", _TARGET) if colour else Text("in ⟦ ⟧")
        yield Text("Targets, which the loss covers, are ").append_text(how).append(".\n")
    for example in look.shown:
        yield Text(_heading(example), "bold")
        yield _drawn(example, colour)
    yield grid(_counts(look))
    if len(look.sources) > 1:
        yield ""
        rows = [(one.key, one.path, count(one.examples), count(one.tokens)) for one in look.sources]
        yield drawn(FoundTable(("source", "path", "examples", "tokens"), rows, words=(0, 1)))


def _heading(example: ShownExample) -> str:
    text = f"{example.where}{f', {example.part}' if example.part else ''}: {count(example.tokens)} tokens"
    if example.cut_tokens == example.tokens:
        return f"{text}, left out: longer than train.max_length"
    return f"{text}, the last {count(example.cut_tokens)} cut" if example.cut_tokens else text


def _drawn(example: ShownExample, colour: bool) -> Text:
    text = Text()
    for span in example.spans:
        shown = _shortened(span)
        if span.target and not colour:
            shown = f"⟦{shown}⟧"
        text.append(shown, _TARGET if span.target and colour else "")
    return text.append("\n")


def _shortened(span: Span) -> str:
    text = "".join(one if one.isprintable() or one in "\n\t" else repr(one)[1:-1] for one in span.text)
    left = len(text) - _MOST_CHARACTERS
    half = _MOST_CHARACTERS // 2
    return text if left <= 0 else f"{text[:half]} … {count(left)} characters … {text[-half:]}"


def _counts(look: DataLook) -> Iterator[tuple[str, str]]:
    held = f"{count(look.examples)}, {count(look.tokens)} tokens"
    yield "examples", held + (f"; evaluation {count(look.evaluation_examples)}" if look.evaluation_examples else "")
    sizes = look.lengths
    if look.generations:
        yield "tokens each", f"p50 {count(sizes['p50'])}, p95 {count(sizes['p95'])}, max {count(sizes['max'])}"
        completions = counted(look.generations, "completion")
        yield "targets", f"{completions} of each, of {count(look.completion_tokens)} tokens at most"
        return
    yield "targets", f"{count(look.target_tokens)} tokens, {share(look.target_share)} of all"
    yield "tokens each", f"p50 {count(sizes['p50'])}, p95 {count(sizes['p95'])}, max {count(sizes['max'])}"
    yield "truncated", _truncated(look)
    if look.dropped:
        yield "left out", f"{counted(look.dropped, 'example')}: too long, or with nothing to learn from"
    if look.without_target:
        yield "no target", f"{counted(look.without_target, 'example')}, computed for nothing"
    packing = look.packing
    if packing is None:
        yield "packing", "off"
    else:
        joined = f"{packing.examples_per_row:.1f} examples a row, {share(packing.fill_rate)} filled"
        yield "packing", f"{counted(packing.rows, 'row')} of {count(look.max_length or 0)} tokens, {joined}"


def _truncated(look: DataLook) -> str:
    if look.max_length is None:
        return "none: train.max_length is not set"
    at = f"at train.max_length {count(look.max_length)}"
    if not look.truncated:
        return f"none {at}"
    return f"{counted(look.truncated, 'example')} {at}, which loses {count(look.truncated_tokens)} tokens"
