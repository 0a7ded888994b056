"""The data of a recipe on a terminal: its examples with their targets, and a table of counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.reporting.terminal import FoundTable, drawn, grid
from hf_efficient.text import count, counted, share

if TYPE_CHECKING:
    from hf_efficient.data.look import DataLook, ShownExample, Span

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
        yield "targets", f"{look.generations} completions of each, of {count(look.completion_tokens)} tokens at most"
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
