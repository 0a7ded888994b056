"""A recipe beside its peers: the table for a terminal and a Markdown file, and a picture of the ratios."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TypeVar

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.estimate.statistics import CONFIDENCE
from hf_efficient.records.bench import ArmOutcome, Comparison
from hf_efficient.reporting.terminal import FoundTable, drawn, markdown_table
from hf_efficient.text import share, short_seconds, size

_N = TypeVar("_N", int, float)
SPEED = ("tokens/s", "x", "host memory", "GPU memory", "p50", "p95", "padding", "MFU")
_LEARNING = ("first loss", "last loss", "least gradient norm")
_OPTIONAL = ("GPU memory", "MFU")


def arms_table(found: Comparison, headings: Sequence[str]) -> FoundTable:
    """The arms that ran, in their order; an optional column of which nothing is known is left out."""
    rows = [(one.name, _cells(one)) for one in found.arms if one.runs]
    kept = [name for name in headings if name not in _OPTIONAL or any(cells[name] != "-" for _, cells in rows)]
    return FoundTable(["arm", *kept], [[arm, *(cells[name] for name in kept)] for arm, cells in rows])


def _cells(one: ArmOutcome) -> dict[str, str]:
    ratio = one.ratio
    return {
        "tokens/s": "refused" if one.refused else _told(one.tokens_per_second, lambda value: f"{value:,.0f}"),
        "x": "-" if ratio is None else f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
        "host memory": _told(one.peak_host_bytes, size),
        "GPU memory": _told(one.peak_device_bytes, size),
        "p50": _told(one.step_p50_seconds, short_seconds),
        "p95": _told(one.step_p95_seconds, short_seconds),
        "padding": _told(one.padding_share, lambda value: f"{value:.0%}"),
        "MFU": _told(one.mfu, share),
        "first loss": _told(one.first_loss, lambda value: f"{value:.3f}"),
        "last loss": _told(one.last_loss, lambda value: f"{value:.3f}"),
        "least gradient norm": _told(one.least_gradient_norm, lambda value: f"{value:.3g}"),
    }


def _told(value: _N | None, form: Callable[[_N], str]) -> str:
    return "-" if value is None else form(value)


def head_lines(found: Comparison) -> Iterator[str]:
    work = found.work
    yield f"{found.recipe}: {work.model}, on {work.device_name}, one process"
    yield (
        f"{found.steps} optimizer steps a run, the first {found.warm_up} left out of times and rates; "
        f"{found.rounds} {'round' if found.rounds == 1 else 'rounds'} in alternating order"
    )
    yield (
        f"micro-batches of {work.packed_rows} x {work.max_length} packed tokens or {work.padded_rows} padded examples "
        f"(mean {work.mean_tokens:.0f} tokens); {work.accumulation} to a step"
    )
    yield "data.targets: all in every arm, as TRL trains; tokens/s without padding, data wait and logging included"
    ratio = next((one.ratio for one in found.arms if one.ratio is not None), None)
    if ratio is not None and found.rounds == 1:
        yield f"x: tokens/s over those of {found.base}; one round says nothing of the spread"
    elif ratio is not None:
        sure = "" if ratio.confidence >= CONFIDENCE else "; six rounds give 95%"
        held = f"the interval that holds it with {ratio.confidence:.1%}{sure}"
        yield f"x: tokens/s over those of {found.base}, median of the rounds and {held}"


def without_speed(found: Comparison) -> Iterator[str]:
    for one in found.arms:
        if one.refused:
            yield f"{one.name} is refused, its speed not shown: {one.reason}"
        elif one.reason:
            yield f"{one.name} was not measured: {one.reason}"


def comparison_renderables(found: Comparison) -> list[RenderableType]:
    return [
        Text("\n".join(head_lines(found)), "dim"),
        Text(),
        drawn(arms_table(found, SPEED)),
        Text(),
        drawn(arms_table(found, _LEARNING)),
        Text(),
        *(Text(line, "yellow") for line in without_speed(found)),
        *(Text(f"{one.name}: {one.what}", "dim") for one in found.arms if one.runs),
    ]


def markdown(found: Comparison, command: str) -> str:
    made = arms_table(found, (*SPEED, *_LEARNING))
    whats = {one.name: one.what for one in found.arms}
    rows = [[f"{row[0]}: {whats[row[0]]}", *row[1:]] for row in made.rows]
    table = markdown_table(FoundTable(made.headings, rows))
    notes = [f"- {line}" for line in (*head_lines(found), *without_speed(found))]
    return "\n".join([f"```bash\n{command}\n```", "", *notes, "", *table, "", _foot(found)]) + "\n"


def _foot(found: Comparison) -> str:
    versions = found.environment.get("versions") or {}
    named = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    load = "" if found.load_average is None else f", load average {found.load_average:.2f} at the start"
    return f"{found.started_at}{load}. hf_efficient {found.hf_efficient_version}, {named}."


_ROW, _LEFT, _WIDTH, _TOP = 34, 150, 420, 34


def picture(found: Comparison) -> str:
    """SVG: the ratio of each arm as a bar, its interval as a line."""
    drawn_arms = [(one, one.ratio) for one in found.arms if one.ratio is not None]
    longest = max((ratio.high for _, ratio in drawn_arms), default=1.0)
    scale = _WIDTH / longest
    parts = [f'<text x="8" y="20" font-weight="bold">tokens/s without padding over those of {found.base}</text>']
    for place, (one, ratio) in enumerate(drawn_arms):
        top = _TOP + place * _ROW
        middle = top + _ROW / 2 - 4
        low, high = _LEFT + ratio.low * scale, _LEFT + ratio.high * scale
        colour = "#2a9d8f" if one.name.startswith("recipe") else "#9aa5b1"
        parts += [
            f'<text x="{_LEFT - 8}" y="{middle + 5}" text-anchor="end">{escape(one.name)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{ratio.median * scale:.1f}" height="{_ROW - 8}" fill="{colour}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#222" stroke-width="2"/>',
            f'<text x="{_LEFT + longest * scale + 8:.1f}" y="{middle + 5}">{ratio.median:.2f}</text>',
        ]
    height = _TOP + len(drawn_arms) * _ROW + 6
    size_of = f'viewBox="0 0 {_LEFT + _WIDTH + 60} {height}" width="{_LEFT + _WIDTH + 60}" height="{height}"'
    style = 'font-family="sans-serif" font-size="13"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size_of} {style}>{background}{"".join(parts)}</svg>\n'
