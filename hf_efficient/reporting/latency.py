"""How fast models answer, on a terminal: a row for each point, the knees, and what the words mean."""

from collections.abc import Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.records.latency import Latency, LatencyPoint, Percentiles
from hf_efficient.records.tuning import LEAST_DOUBLING
from hf_efficient.reporting.labels import or_nothing
from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.text import sentence, short_seconds, size

_ASKED = ["model", "engine", "prompt", "new", "at once"]
_FIGURES = ["", "tokens/s", "first", "p95", "between", "p95", "whole", "p95", "p99", "memory", "kWh/M", "USD/M"]
_SHORT = (0, 1, 2, 4, 6, 7, 9, 11)
"""Of the figures, those for which a terminal has room."""


def latency_table(found: Latency, *, short: bool = False) -> FoundTable:
    """What is the same, or not known, at all points has no column; ``short``: for a terminal."""
    kept = [place for place in range(len(_FIGURES)) if not short or place in _SHORT]
    rows = [[*_asked(one), *(_figures(one)[place] for place in kept)] for one in found.points]
    headings = [*_ASKED, *(_FIGURES[place] for place in kept)]
    columns = [column for column in range(len(headings)) if column == 4 or _tells(column, rows)]
    words = tuple(place for place, column in enumerate(columns) if column < 2 or not headings[column])
    cells = [[row[column] for column in columns] for row in rows]
    return FoundTable([headings[column] for column in columns], cells, "The points", words=words)


def _tells(column: int, rows: list[list[str]]) -> bool:
    held = {row[column] for row in rows}
    return held - {"-", ""} != set() if column >= len(_ASKED) else len(held) > 1


def _asked(one: LatencyPoint) -> list[str]:
    name = one.model if one.engine == "server" else one.model.rstrip("/").rpartition("/")[2]
    return [name, one.engine, *(f"{number:,}" for number in (one.prompt_tokens, one.new_tokens, one.at_a_time))]


def _figures(one: LatencyPoint) -> list[str]:
    if one.failed:
        return ["failed", *["-"] * 11]
    times = [*_times(one.first_token)[:2], *_times(one.between_tokens)[:2], *_times(one.whole)]
    memory = or_nothing(one.peak_bytes, size, "-")
    kwh = or_nothing(one.joules_per_million, lambda joules: f"{joules / 3.6e6:.3g}", "-")
    usd = or_nothing(one.usd_per_million, "{:.3g}".format, "-")
    return ["knee" * one.is_knee, f"{one.tokens_per_second:,.1f}", *times, memory, kwh, usd]


def _times(found: Percentiles | None) -> list[str]:
    return ["-"] * 3 if found is None else [short_seconds(one) for one in found]


def latency_notes(found: Latency) -> Iterator[str]:
    yield "first, between, whole: medians; --json and --html have all percentiles"
    yield "first: from a request to its first token; between: the mean time from one token of an answer to the next"
    yield "whole: to the last token; tokens/s: new tokens of all requests together; memory: the model's process at most"
    if any(one.is_knee for one in found.points):
        yield f"knee: the last number at a time whose doubling gives {LEAST_DOUBLING:g} times the tokens/s"
    few = min((one.requests for one in found.points if not one.failed), default=0)
    if few < 100:
        yield f"with {few} requests at a point p99 is nearly the longest; more --seconds make it surer"
    if any(one.energy_is_estimated for one in found.points):
        yield "energy is estimated from the time that the CPUs were busy, for no meter was read"
    for one in found.points:
        if not one.failed and abs(one.answered_tokens - one.new_tokens) > 0.5:
            yield f"{one.model} ended answers after {one.answered_tokens:.0f} of {one.new_tokens} tokens"
        if not one.failed and abs(one.read_tokens - one.prompt_tokens) > 0.1 * one.prompt_tokens:
            yield f"{one.model} reads the prompts as {one.read_tokens:,.0f} tokens, not {one.prompt_tokens:,}"
    for one in (each for each in found.points if each.failed):
        asked = f"{one.new_tokens:,} new tokens after {one.prompt_tokens:,}, {one.at_a_time} at once"
        yield f"failed: {one.model}, {asked}: {one.failed.rstrip('.')}"
    yield from found.notes


def latency_renderables(found: Latency) -> Iterator[RenderableType]:
    for model in dict.fromkeys(one.model for one in found.points):
        points = [one for one in found.points if one.model == model]
        asked = {(one.prompt_tokens, one.new_tokens) for one in points}
        lengths = [f"answers of {new:,} tokens to prompts of {prompt:,}" for prompt, new in asked]
        yield Text(f"{model} on {points[0].engine}{': ' + lengths[0] if len(asked) == 1 else ''}", "bold")
        yield drawn(latency_table(replace(found, points=points), short=True))
        yield Text()
    yield from (Text(f"{sentence(one)}.", "dim") for one in latency_notes(found))
