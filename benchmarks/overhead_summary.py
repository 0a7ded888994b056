"""From blocks to comparisons: what an arm adds to another, with its spread.

Statistics of paired measurements: orders that alternate, the median of the pairs, and its spread.

A machine's speed drifts by more than what is measured here. So A and B are run next to each other, in alternating
order, and each pair gives one ratio or one difference; what drifts slowly falls out of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from overhead_cases import Target
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.estimate.statistics import Spread, median_spread

Verdict = Literal["met", "missed", "undecided"]


def ratios(measured: Sequence[float], base: Sequence[float]) -> list[float]:
    """What was measured by what it is compared with, pair by pair.

    Raises:
        ValueError: the two are not of one length.
    """
    return [one / other for one, other in zip(measured, base, strict=True)]


def differences(measured: Sequence[float], base: Sequence[float]) -> list[float]:
    """What was measured less what it is compared with, pair by pair.

    Raises:
        ValueError: the two are not of one length.
    """
    return [one - other for one, other in zip(measured, base, strict=True)]


def judge(spread: Spread, most: float) -> Verdict:
    """Whether a median is at most ``most``: the interval lies below, above, or on both sides of it.

    With too few pairs for an interval of 95% it is undecided.
    """
    if not spread.is_sure or spread.low <= most < spread.high:
        return "undecided"
    return "met" if spread.high <= most else "missed"


_FIGURES = ("wall_us", "mean_wall_us", "cpu_us", "background_cpu_us", "outside_seconds")
Blocks = Mapping[str, Sequence[Mapping[str, Any]]]
"""Blocks by arm, as ``Block.to_json`` gives them; those of one round have the same place in each list."""


@dataclass(frozen=True)
class Comparison:
    """One arm against another.

    Attributes:
        arm: who is measured.
        against: what it is compared with.
        base_wall_us: microseconds per step of the latter, the median.
        added_us: microseconds per step that the arm adds.
        ratio: of the step times.
        added_mean_us: the same as ``added_us`` by means over whole blocks, bursts of other work included.
        added_cpu_us: microseconds of CPU time per step, of all threads of the process.
        added_background_cpu_us: of these, beside the training thread; None where they cannot be told apart.
        added_outside_seconds: seconds once per ``train()``, outside its steps; None where trainers took turns.
    """

    arm: str
    against: str
    base_wall_us: float
    added_us: Spread
    ratio: Spread
    added_mean_us: Spread
    added_cpu_us: Spread
    added_background_cpu_us: Spread | None
    added_outside_seconds: Spread | None

    @property
    def differs(self) -> bool | None:
        """Whether equality lies outside the spread of the step time; None where the pairs are too few to tell."""
        return not self.added_us.low <= 0 <= self.added_us.high if self.added_us.is_sure else None


def compare(blocks: Blocks, arm: str, against: str) -> Comparison:
    """Pair the blocks of two arms round by round.

    Raises:
        ValueError: an arm has no block, or one has more than the other.
    """
    measured, base = blocks[arm], blocks[against]

    def added(field: str) -> Spread:
        return median_spread(differences([one[field] for one in measured], [one[field] for one in base]))

    wall, base_wall = [one["wall_us"] for one in measured], [one["wall_us"] for one in base]

    def added_where_told(field: str) -> Spread | None:
        return added(field) if all(one[field] is not None for one in (*measured, *base)) else None

    return Comparison(
        arm=arm,
        against=against,
        base_wall_us=median_spread(base_wall).median,
        added_us=added("wall_us"),
        ratio=median_spread(ratios(wall, base_wall)),
        added_mean_us=added("mean_wall_us"),
        added_cpu_us=added("cpu_us"),
        added_background_cpu_us=added_where_told("background_cpu_us"),
        added_outside_seconds=added_where_told("outside_seconds"),
    )


def verdict(comparison: Comparison, target: Target) -> Verdict:
    """Whether the promise is kept."""
    return judge(comparison.ratio if target.measure == "ratio" else comparison.added_us, target.most)


def columns(blocks: Blocks) -> dict[str, dict[str, list[float | None]]]:
    """Every figure of every block, by arm and name, in the order of the rounds; microseconds to a tenth."""
    return {
        arm: {name: [_rounded(name, one[name]) for one in held] for name in _FIGURES if name in held[0]}
        for arm, held in blocks.items()
    }


def _rounded(name: str, value: float | None) -> float | None:
    return None if value is None else round(value, 1 if name.endswith("_us") else 4)


_NAMES = {
    "plain": "Trainer",
    "again": "Trainer once more",
    "efficient": "EfficientTrainer",
    "launcher": "the same without TraceML (--disable-traceml)",
    "traceml": "traceml run",
}
_DIFFERS = {True: "", False: "no difference", None: "too few rounds to tell"}


def comparison_tables(title: str, comparisons: Sequence[Comparison]) -> RenderableType:
    """Per comparison what is added: the median, the interval that holds it, and what that is of a step."""
    confidence = min(one.added_us.confidence for one in comparisons)
    head = Text(f"{title}; median [interval that holds it with {100 * confidence:.0f}%]", "italic")
    return Group(head, *(_table(one) for one in comparisons))


def _table(one: Comparison) -> RenderableType:
    told = _milliseconds if one.base_wall_us >= 1e5 else _microseconds
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_row("  step time", *told(one.added_us), _DIFFERS[one.differs])
    table.add_row("  ratio", *_shown(one.ratio, lambda value: f"{value:.4f}", ""))
    table.add_row("  mean step", *told(one.added_mean_us))
    table.add_row("  CPU time", *told(one.added_cpu_us))
    if one.added_background_cpu_us is not None:
        table.add_row("  of it in background", *told(one.added_background_cpu_us))
    if one.added_outside_seconds is not None:
        table.add_row("  once per train()", *_milliseconds(one.added_outside_seconds, 1e3))
    return Group(Text(f"{_NAMES[one.arm]} against {_NAMES[one.against]}, {_time(one.base_wall_us)} a step"), table)


def target_line(target: Target, verdict: Verdict) -> Text:
    """What is promised, and whether it is kept."""
    promise = (
        f"{100 * (target.most - 1):.1f}% of the step time"
        if target.measure == "ratio"
        else f"{target.most:.0f} us per step"
    )
    style = {"met": "green", "missed": "red", "undecided": "yellow"}[verdict]
    told = {"undecided": "undecided, the interval lies on both sides"}.get(verdict, verdict)
    return Text.assemble(f"Target, at most {promise}: ", (told, style))


def _shown(spread: Spread, form: Callable[[float], str], unit: str) -> tuple[str, str]:
    return f"{form(spread.median)} {unit}".rstrip(), f"[{form(spread.low)}, {form(spread.high)}]"


def _microseconds(spread: Spread) -> tuple[str, str]:
    return _shown(spread, lambda value: f"{value:+.0f}", "us")


def _milliseconds(spread: Spread, per: float = 1e-3) -> tuple[str, str]:
    """``per``: milliseconds in one of the spread's units; microseconds where it is not given."""
    return _shown(spread, lambda value: f"{value * per:+.1f}", "ms")


def _time(us: float) -> str:
    return f"{us / 1e6:.3f} s" if us >= 1e6 else f"{us / 1e3:.2f} ms"
