"""A sweep on a terminal: the points, the knees and the answer."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.records.tuning import LEAST_DOUBLING, Sweep, SweptPoint, unmeasured_beyond
from hf_efficient.reporting.labels import or_nothing
from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.text import counted, seconds, sentence, share, short_seconds, size

_SHORT = {"train.per_device_train_batch_size": "rows", "train.max_length": "length"}


def points_table(found: Sweep) -> FoundTable:
    """A row for each combination; MFU only where a peak is known."""
    headings = [*(_SHORT.get(key, key.rpartition(".")[2]) for key in found.points[0].values)]
    headings += ["tokens/s", "x2", "p50", "p95", "p99", "steps", "memory", "MFU", ""]
    rows = [[*map(str, one.values.values()), *_cells(found, one)] for one in found.points]
    if all(one.mfu is None for one in found.points):
        headings, rows = [*headings[:-2], ""], [[*row[:-2], row[-1]] for row in rows]
    return FoundTable(headings, rows, "The points", words=(len(headings) - 1,))


def _cells(found: Sweep, one: SweptPoint) -> list[str]:
    marks = ["knee"] * one.is_knee + ["best"] * (found.answer is not None and found.points[found.answer] is one)
    said = {"measured": "", "does_not_fit": "no room", "no_time": "no time"}.get(one.verdict, "failed")
    if not one.steps:
        return ["-"] * 8 + [said]
    times = map(short_seconds, (one.p50_seconds, one.p95_seconds, one.p99_seconds))
    gain, mfu = or_nothing(one.gain_per_doubling, "{:.2f}".format, ""), or_nothing(one.mfu, share, "-")
    memory = or_nothing(one.peak_bytes, size, "-")
    return [f"{one.tokens_per_second:,.0f}", gain, *times, str(one.steps), memory, mfu, " ".join(marks) or said]


def sweep_lines(found: Sweep) -> Iterator[str]:
    yield f"{found.recipe}: {counted(len(found.points), 'point')} in {seconds(found.spent_seconds)} of trials"
    yield from (f"knee: {one.name}, {one.tokens_per_second:,.0f} tokens/s" for one in found.points if one.is_knee)
    limit = found.settings["most_p95_seconds"]
    if found.answer is not None:
        one = found.points[found.answer]
        best = f"{one.name}, {one.tokens_per_second:,.0f} tokens/s, p95 {short_seconds(one.p95_seconds)}"
        beyond = unmeasured_beyond(found.points, one)
        end = f"; it is the largest measured value, without {' and '.join(beyond)}" if beyond else ""
        yield f"most tokens/s with p95 under {short_seconds(limit)}: {best}{end}"
    elif limit is not None:
        shortest = min(one.p95_seconds for one in found.points if one.steps)
        yield f"no point has p95 under {short_seconds(limit)}; the shortest is {short_seconds(shortest)}"


def sweep_notes(found: Sweep) -> Iterator[str]:
    kept = found.settings["keeps_global_batch"]
    yield f"the global batch is {'kept, accumulation follows' if kept else 'not kept, accumulation stays'}"
    yield "tokens/s are without padding, over the steps of all trials; evaluations and saves are left out"
    yield f"knee: the last value of the first key whose doubling (x2) gives {LEAST_DOUBLING:g} times the tokens/s"
    yield "with fewer than 100 steps p99 is nearly the longest step, with fewer than 20 p95 too"
    yield from (f"{one.name}: {one.why}" for one in found.points if one.why)
    yield from found.notes


def sweep_renderables(found: Sweep) -> list[RenderableType]:
    head, *rest = sweep_lines(found)
    answers = (Text(line, "bold green") for line in rest)
    remarks = (Text(f"{sentence(line)}.", "dim") for line in sweep_notes(found))
    return [Text(head, "bold"), *answers, Text(), drawn(points_table(found)), Text(), *remarks]
