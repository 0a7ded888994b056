"""How long the steps took: their distribution.

Tokens per second over the steps.

Tokens per step three ways.

How long the sequences were.

Loss, learning rate and gradient norm over the steps, with the evaluations.

One quantity over the steps of several runs, over each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hf_efficient.accounting.series import per_step, tokens_per_second
from hf_efficient.records.account import StepTimes
from hf_efficient.records.amounts import Evaluation, SequenceAccount, TokenAccount
from hf_efficient.records.series import Histogram, StepSeries
from hf_efficient.reporting.plots.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    Missing,
    StepAxis,
    axis,
    evaluation_places,
    legend_of,
    rounded,
    step_axis,
    upright,
)
from hf_efficient.text import count, share, short_seconds

_LEFT_FROM = 0.72
_EACH_TICKED = 5
_POWERS_DIVIDED = 3
_PERCENTILES = (("p50", GREEN, "solid"), ("p95", ORANGE, "dash"), ("p99", RED, "dot"))


def step_times(times: StepTimes, histogram: Histogram) -> Figure | Missing:
    """A histogram of the steps after warm-up, with their percentiles."""
    marks = [(name, getattr(times, f"{name}_seconds"), color, dash) for name, color, dash in _PERCENTILES]
    if not histogram.counts or any(value is None for _, value, _, _ in marks):
        return Missing("Step times", "no step came after the warm-up" if times.count else "no step was recorded")
    most = max(histogram.counts)
    traces = [_counts(histogram)]
    for place, (name, value, color, dash) in enumerate(marks):
        top = most * (1.22 - 0.1 * place)
        traces.append(_mark(name, value, {"color": color, "width": 2, "dash": dash}, top, histogram))
    low, high = histogram.edges[0], histogram.edges[-1]
    told = ", ".join(f"{name} {short_seconds(value)}" for name, value, _, _ in marks)
    return Figure(
        "step-times",
        "Step times",
        f"{sum(histogram.counts):,} steps without evaluation and checkpointing, from {short_seconds(low)} to "
        f"{short_seconds(high)}: {told}. Set apart as warm-up: {times.warm_up_rule} ({times.warm_up_count:,}).",
        traces,
        {
            "hovermode": "x",
            "xaxis": axis(
                "seconds per step",
                hoverformat=".3~s",
                type=histogram.scale,
                showgrid=False,
                zeroline=False,
                **(_ticks(low, high) if histogram.scale == "log" else {}),
            ),
            "yaxis": axis(
                "steps", rangemode="tozero", range=[0, most * 1.32], **({"dtick": 1} if most <= _EACH_TICKED else {})
            ),
        },
        280,
    )


def _ticks(low: float, high: float) -> dict[str, Any]:
    """Numbers written out at 1, 2 and 5 of each power of ten, of many powers at 1: the library shortens 20 to 2."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) <= _POWERS_DIVIDED else (1,)
    values = [value for power in powers for step in steps if low <= (value := float(f"{step}e{power}")) <= high]
    return {"tickvals": values, "ticktext": [f"{value:g}" for value in values]}


def _mark(name: str, value: float, line: dict[str, Any], top: float, histogram: Histogram) -> dict[str, Any]:
    """An upright line with its name and figure at its top."""
    return {
        "type": "scatter",
        "mode": "lines+text",
        "name": name,
        "x": rounded([value, value]),
        "y": [0, top],
        "text": ["", f" {name}  {short_seconds(value)} "],
        "textposition": f"middle {_side(value, histogram)}",
        "line": line,
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _side(value: float, histogram: Histogram) -> str:
    """Where the words beside a line find room."""
    place = math.log if histogram.scale == "log" else float
    low, high = place(histogram.edges[0]), place(histogram.edges[-1])
    return "left" if high > low and (place(value) - low) / (high - low) > _LEFT_FROM else "right"


def _counts(histogram: Histogram) -> dict[str, Any]:
    pairs = zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False)
    told = [f"{count:,} of {short_seconds(low)} to {short_seconds(high)}" for low, high, count in pairs]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "steps",
        "x": rounded(histogram.edges),
        "y": [*histogram.counts, histogram.counts[-1]],
        "customdata": [*told, told[-1]],
        "fill": "tozeroy",
        "fillcolor": "rgba(35, 131, 210, 0.45)",
        "line": {"color": BLUE, "width": 1, "shape": "hv"},
        "hovertemplate": "%{customdata}<extra></extra>",
    }


_MARKED = 60


def throughput(steps: StepSeries, tokens: TokenAccount, ranks: int) -> Figure | Missing:
    """Non-padding tokens per second of each step's training, and their mean over the run where rank 0 is all."""
    rates = tokens_per_second(steps)
    if not any(rate is not None for rate in rates):
        return Missing("Throughput", "the tokens of the steps are not known" if len(steps) else "no step was recorded")
    where = step_axis(steps)
    traces = [_line(rates, where, "tokens/s" if ranks <= 1 else "tokens/s of rank 0")]
    mean = tokens.non_padding_tokens_per_second
    if mean is not None and ranks <= 1:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "over the run",
                "x": [where.starts[0], where.ends[-1]],
                "y": rounded([mean, mean]),
                "line": {"color": ORANGE, "width": 1.5, "dash": "dash"},
                "hoverinfo": "skip",
            }
        )
    told = f" Over the run: {mean:,.0f} per second{' on all ranks' if ranks > 1 else ''}." if mean is not None else ""
    return Figure(
        "throughput",
        "Throughput",
        f"Tokens without padding per second of training, evaluations and checkpoints apart.{told}",
        traces,
        {
            "hovermode": "x unified",
            "xaxis": where.layout(),
            "yaxis": axis("tokens per second", rangemode="tozero"),
            "shapes": where.resumptions(),
        },
        280,
        "step",
        legend=legend_of(traces),
    )


def _line(rates: Sequence[float | None], where: StepAxis, name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(rates) <= _MARKED else "lines",
        "name": name,
        "x": rounded(where.centers),
        "y": rounded(rates),
        "line": {"color": BLUE, "width": 2},
        "marker": {"color": BLUE, "size": 5},
        "hovertemplate": "%{y:,.4~s}",
    }


_KINDS = {
    "processed": ("processed, padding included", "#b4b9a0"),
    "non_padding": ("without padding", "#65b5f4"),
    "loss_bearing": ("bearing loss", "#2e548d"),
}


def step_tokens(
    steps: StepSeries, tokens: TokenAccount, kinds: Sequence[str] = tuple(_KINDS), name: str = "step-tokens"
) -> Figure | Missing:
    """Nested areas: what was processed, what of it is no padding, what of that bears loss.

    Args:
        steps: of rank 0.
        tokens: of the run, for the words.
        kinds: which of the three, the outer one first.
        name: id of the figure.
    """
    where = step_axis(steps)
    traces = [
        _area(*_KINDS[kind], per_step(sums, steps), where)
        for kind in kinds
        if any(sums := getattr(steps, f"{kind}_tokens"))
    ]
    if not traces:
        return Missing("Tokens per step", "tokens were not counted" if len(steps) else "no step was recorded")
    told = [f"{count(value)} {_KINDS[kind][0]}" for kind in kinds if (value := getattr(tokens, kind)) is not None]
    is_known = "processed" in kinds and tokens.padding_share is not None
    padding = f" Padding: {share(tokens.padding_share or 0.0)}." if is_known else ""
    return Figure(
        name,
        "Tokens per step",
        f"Each area lies within the one before. Over the run: {', '.join(told)}.{padding}" if told else "",
        traces,
        {
            "hovermode": "x unified",
            "xaxis": where.layout(),
            "yaxis": axis("tokens per step", rangemode="tozero"),
            "shapes": where.resumptions(),
        },
        260,
        "step",
        legend=legend_of(traces),
    )


def _area(label: str, color: str, values: list[float | None], where: StepAxis) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label,
        "x": rounded(where.centers),
        "y": rounded(values),
        "fill": "tozeroy",
        "fillcolor": color,
        "line": {"color": color, "width": 0, "shape": "hvh"},
        "hovertemplate": "%{y:,.4~s}",
    }


_OCTAVE_PART = 0.25  # buckets are a quarter of an octave wide


def sequence_lengths(sequences: SequenceAccount) -> Figure | Missing:
    """Documents by length, in the buckets that they were counted in; each ends at its bound, on a logarithmic axis."""
    if not sequences.length_buckets:
        return Missing("Sequence lengths", "the lengths of the sequences were not counted")
    bounds = sorted(int(bound) for bound in sequences.length_buckets)
    told = f"{count(sum(sequences.length_buckets.values()))} documents by their tokens without padding"
    if sequences.mean_tokens is not None:
        told += f", {sequences.mean_tokens:,.1f} on average"
    if sequences.shortest_tokens is not None and sequences.longest_tokens is not None:
        told += f", from {sequences.shortest_tokens:,} to {sequences.longest_tokens:,}"
    return Figure(
        "sequence-lengths",
        "Sequence lengths",
        f"{told}.",
        [
            {
                "type": "bar",
                "x": rounded(math.log2(bound) - _OCTAVE_PART / 2 for bound in bounds),
                "y": [sequences.length_buckets[str(bound)] for bound in bounds],
                "width": _OCTAVE_PART,
                "customdata": [f"≤ {bound:,}" for bound in bounds],
                "marker": {"color": "#65b5f4"},
                "hovertemplate": "%{customdata} tokens: %{y:,} documents<extra></extra>",
            }
        ],
        {
            "hovermode": "closest",
            "xaxis": axis("tokens of a document", showgrid=False, zeroline=False, **_lengths_ticks(bounds)),
            "yaxis": axis("documents", rangemode="tozero"),
        },
        260,
    )


def _lengths_ticks(bounds: Sequence[int]) -> dict[str, Any]:
    """The powers of two."""
    powers = range(math.floor(math.log2(bounds[0])), math.ceil(math.log2(bounds[-1])) + 1)
    return {"tickvals": list(powers), "ticktext": [f"{2**power:,}" for power in powers]}


_HEIGHTS = {1: ((0.0, 1.0),), 2: ((0.36, 1.0), (0.0, 0.26)), 3: ((0.5, 1.0), (0.26, 0.42), (0.0, 0.18))}
_DENSE = 400


def training_curve(steps: StepSeries, evaluations: Sequence[Evaluation]) -> Figure | Missing:
    """The logged loss (with its least and most where steps are put together), and below it what else was logged."""
    where = step_axis(steps)
    losses = _losses(steps, where) + _evaluated(evaluations, steps, where)
    others = [
        (values, label, color)
        for values, label, color in (
            (steps.learning_rate, "learning rate", GREEN),
            (steps.grad_norm, "gradient norm", ORANGE),
        )
        if any(value is not None for value in values)
    ]
    if not losses and not others:
        return Missing("Loss", "no loss was logged; train.logging_steps says how often it is")
    heights = _HEIGHTS[bool(losses) + len(others)]
    layout: dict[str, Any] = {"hovermode": "x unified", "hoversubplots": "axis", "grid": {}}
    traces, panels = list(losses), [("loss", losses)] if losses else []
    for values, label, color in others:
        row = [_training_curve_line(values, label, color, where)]
        traces += row
        panels.append((label, row))
    for number, ((title, rows), domain) in enumerate(zip(panels, heights, strict=True), start=1):
        suffix = "" if number == 1 else str(number)
        for trace in rows:
            trace["yaxis"] = f"y{suffix}"
        layout[f"yaxis{suffix}"] = axis(
            title, domain=list(domain), nticks=6 if number == 1 else 3, exponentformat="power"
        )
    layout["xaxis"] = where.layout(anchor="free", position=0)
    marked = evaluation_places(evaluations, steps, where) if len(evaluations) <= _MARKED else []
    layout["shapes"] = where.resumptions() + [upright(at) for at in marked]
    return Figure(
        "training-curve",
        " and ".join(_titles([title for title, _ in panels])),
        _summary(steps, evaluations),
        traces,
        layout,
        200 + 90 * len(panels),
        "step",
        legend=legend_of(traces),
    )


def _titles(titles: list[str]) -> list[str]:
    words = [", ".join(titles[:-1]), titles[-1]] if len(titles) > 1 else titles
    return [words[0].capitalize(), *words[1:]]


def _training_curve_line(values: Sequence[float | None], label: str, color: str, where: StepAxis) -> dict[str, Any]:
    known = [(at, value) for at, value in zip(where.ends, values, strict=True) if value is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(known) <= _MARKED else "lines",
        "name": label,
        "x": rounded(at - 0.5 for at, _ in known),
        "y": rounded(value for _, value in known),
        "line": {"color": color, "width": 2 if len(known) <= _DENSE else 1.2},
        "marker": {"color": color, "size": 5},
        "hovertemplate": "%{y:.4~g}",
    }


def _losses(steps: StepSeries, where: StepAxis) -> list[dict[str, Any]]:
    if not any(value is not None for value in steps.loss):
        return []
    line = _training_curve_line(steps.loss, "training loss", BLUE, where)
    if steps.loss_min == steps.loss_max:
        return [line]
    low, high = (_training_curve_line(values, "", BLUE, where) for values in (steps.loss_min, steps.loss_max))
    for edge in (low, high):
        edge |= {"mode": "lines", "line": {"width": 0, "color": BLUE}, "hoverinfo": "skip", "hovertemplate": None}
        edge["legendgroup"] = ""
    high |= {"fill": "tonexty", "fillcolor": "rgba(35, 131, 210, 0.22)"}
    return [low, high, line]


def _evaluated(evaluations: Sequence[Evaluation], steps: StepSeries, where: StepAxis) -> list[dict[str, Any]]:
    places = evaluation_places(evaluations, steps, where)
    told = [
        (at, each.step, loss)
        for at, each in zip(places, evaluations, strict=True)
        if (loss := each.metrics.get("loss")) is not None
    ]
    if not told:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines+markers" if len(told) <= _MARKED else "lines",
            "name": "evaluation loss",
            "x": rounded(at for at, _, _ in told),
            "y": rounded(loss for _, _, loss in told),
            "customdata": [f"after step {step:,}" if step else "before training" for _, step, _ in told],
            "line": {"color": PURPLE, "width": 1.5, "dash": "dot" if len(told) <= _MARKED else "solid"},
            "marker": {"color": PURPLE, "size": 9, "symbol": "diamond"},
            "cliponaxis": False,
            "hovertemplate": "%{y:.4~g} %{customdata}",
        }
    ]


def _summary(steps: StepSeries, evaluations: Sequence[Evaluation]) -> str:
    known = [value for value in steps.loss if value is not None]
    told = []
    if known:
        told.append(f"The training loss, as the Trainer logged it: first {known[0]:.4g}, last {known[-1]:.4g}.")
    losses = [(each.step, loss) for each in evaluations if (loss := each.metrics.get("loss")) is not None]
    if losses:
        ends = losses[:1] + losses[1:][-1:]
        words = [f"{loss:.4g} {f'after step {step:,}' if step else 'before training'}" for step, loss in ends]
        told.append(f"On the evaluation data: {', '.join(words)}.")
    if 0 < len(evaluations) <= _MARKED:
        told.append("Dotted lines are evaluations.")
    broken = sum(steps.not_finite)
    if broken:
        told.append(f"{broken:,} of the logged losses and gradient norms are no finite number, and are not drawn.")
    return " ".join(told)


RUN_STYLES = [
    (BLUE, "solid"),
    (ORANGE, "solid"),
    (GREEN, "dash"),
    (PURPLE, "dash"),
    (RED, "dot"),
    (GREY, "dot"),
]
"""Colour and dash of each run, in their order; they start again from the seventh on."""


def compare_losses(series: Sequence[StepSeries | None], labels: Sequence[str]) -> Figure | Missing:
    """The training losses as they were logged."""
    columns = [[] if steps is None else steps.loss for steps in series]
    traces, end = _lines(series, columns, labels, "%{y:.4~g}")
    if not traces:
        return Missing("Training loss", "no run has logged any")
    summary = f"As the Trainer logged it.{_left_out(labels, traces)}"
    return _figure("compare-loss", "Training loss", summary, traces, end, axis("loss"))


def compare_step_times(series: Sequence[StepSeries | None], labels: Sequence[str]) -> Figure | Missing:
    """The time of each step without its evaluation and checkpointing."""
    columns = [[] if steps is None else list(steps.step_seconds_mean) for steps in series]
    traces, end = _lines(series, columns, labels, "%{y:.3~s}s")
    if not traces:
        return Missing("Step times", "no run has recorded a step")
    summary = f"Evaluations and checkpoints apart.{_left_out(labels, traces)}"
    vertical = axis("seconds per step", rangemode="tozero")
    return _figure("compare-step-times", "Step times", summary, traces, end, vertical)


def _lines(
    series: Sequence[StepSeries | None],
    columns: Sequence[Sequence[float | None]],
    labels: Sequence[str],
    told: str,
) -> tuple[list[dict[str, Any]], float]:
    """A line per run that has figures, and where the longest one ends."""
    traces: list[dict[str, Any]] = []
    ends = [0.5]
    for place, (steps, column, label) in enumerate(zip(series, columns, labels, strict=True)):
        if steps is None or all(value is None for value in column):
            continue
        where = step_axis(steps)
        known = [(at, value) for at, value in zip(where.centers, column, strict=True) if value is not None]
        color, dash = RUN_STYLES[place % len(RUN_STYLES)]
        ends.append(where.ends[-1])
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": rounded(at for at, _ in known),
                "y": rounded(value for _, value in known),
                "line": {"color": color, "width": 2, "dash": dash},
                "hovertemplate": told,
            }
        )
    return traces, max(ends)


def _left_out(labels: Sequence[str], traces: Sequence[dict[str, Any]]) -> str:
    missing = len(labels) - len(traces)
    return f" {missing} of the runs have no records of it." if missing else ""


def _figure(
    name: str, title: str, summary: str, traces: list[dict[str, Any]], end: float, vertical: dict[str, Any]
) -> Figure:
    horizontal = axis(
        "optimizer step",
        range=[0.5, end],
        tickformat=",.1~f",
        unifiedhovertitle={"text": "step %{x:,.0f}"},
        showgrid=False,
        zeroline=False,
    )
    layout = {"hovermode": "x unified", "xaxis": horizontal, "yaxis": vertical}
    return Figure(name, title, summary, traces, layout, 300, "step", legend=legend_of(traces), selectable=False)
