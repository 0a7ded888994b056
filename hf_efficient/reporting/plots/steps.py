"""What a run did step by step: phases, speed, tokens, lengths, learning; and several runs over each other."""

import math
from collections.abc import Sequence
from typing import Any

from hf_efficient.accounting.series import per_step, tokens_per_second
from hf_efficient.records.account import Histogram, StepSeries, StepTimes
from hf_efficient.records.amounts import Evaluation, SequenceAccount, TokenAccount
from hf_efficient.reporting.labels import called, phase_color, phase_label, told
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Missing, StepAxis, Trace
from hf_efficient.text import counted, sentence, short_seconds

_EACH_TICKED = 5
_ROOM = 1.3
_CLIP_FROM = 2.0
_PERCENTILES = (("p50", draw.GREEN, "solid"), ("p95", draw.ORANGE, "dash"), ("p99", draw.RED, "dot"))
_MARKED = 60
_DENSE = 400
_OCTAVE_PART = 0.25  # buckets are a quarter of an octave wide
_HEIGHTS = {1: ((0.0, 1.0),), 2: ((0.36, 1.0), (0.0, 0.26)), 3: ((0.5, 1.0), (0.26, 0.42), (0.0, 0.18))}
_COLORS = (draw.BLUE, draw.ORANGE, draw.GREEN, draw.PURPLE, draw.RED, draw.GREY)
RUN_STYLES = list(zip(_COLORS, ("solid", "solid", "dash", "dash", "dot", "dot"), strict=True))
"""Colour and dash of each run, in their order; they start again from the seventh on."""


def step_phases(steps: StepSeries, times: StepTimes) -> Figure | Missing:
    """Seconds per step, stacked by phase; where a few steps tower over the others, the others have the height."""
    if not len(steps):
        return Missing("Per step", "no step was recorded")
    where, most = draw.step_axis(steps), max(steps.steps)
    phases = steps.phase_seconds.items()
    layers = [(phase_label(name), phase_color(name), per_step(held, steps)) for name, held in phases]
    traces = draw.stack_traces(layers, where.centers, where.widths if most > 1 else None, "%{y:.3~s}s")
    first, last = steps.first_step[0], steps.last_step[-1]
    summary = f"Seconds per optimizer step by phase, from step {first:,} to {last:,}."
    if most > 1:
        summary += f" A point is the mean of up to {most:,} steps."
    upwards = draw.axis("seconds per step", rangemode="tozero", hoverformat=".3~s")
    gap = 0.12 if len(steps) <= 60 else 0
    layout = draw.plane(where.layout(), upwards, barmode="stack", bargap=gap, shapes=where.resumptions())
    # The height shows the training of nearly every step.
    top = _ROOM * times.p99_seconds if times.p99_seconds else max(steps.step_seconds_mean)
    if max(wall / count for wall, count in zip(steps.wall_seconds, steps.steps, strict=True)) > _CLIP_FROM * top:
        summary += " Steps with an evaluation, a checkpoint or a slow start reach above the plot: “Whole” shows them."
        layout["yaxis"]["range"] = [0, top]
    return Figure("step-phases", "Per step", summary, traces, layout, 340, "step")


def step_times(times: StepTimes, histogram: Histogram) -> Figure | Missing:
    marks = [(name, getattr(times, f"{name}_seconds"), color, dash) for name, color, dash in _PERCENTILES]
    if not histogram.counts or any(value is None for _, value, _, _ in marks):
        return Missing("Step times", "no step came after the warm-up" if times.count else "no step was recorded")
    most = max(histogram.counts)
    traces = [_counts(histogram)]
    for name, value, color, dash in marks:
        label, x = f"{name} {short_seconds(value)}", draw.rounded([value, value])
        traces.append(draw.line(label, x, [0, 1.2 * most], color, dash=dash, hoverinfo="skip"))
    low, high = histogram.edges[0], histogram.edges[-1]
    slowest = "" if times.warm_up_max_seconds is None else f", the longest {short_seconds(times.warm_up_max_seconds)}"
    at = ", ".join(f"{name} {short_seconds(value)}" for name, value, _, _ in marks)
    summary = (
        f"{counted(sum(histogram.counts), 'step')} without evaluation and checkpointing, from {short_seconds(low)} to "
        f"{short_seconds(high)}: {at}. Set apart as warm-up: {times.warm_up_rule} ({times.warm_up_count:,}{slowest})."
    )
    plain = {"hoverformat": ".3~s", "type": histogram.scale, "showgrid": False, "zeroline": False}
    each = {"dtick": 1} if most <= _EACH_TICKED else {}
    ticks = draw.log_ticks(low, high) if histogram.scale == "log" else {}
    horizontal = draw.axis("seconds per step", **plain, **ticks)
    upwards = draw.axis("steps", rangemode="tozero", range=[0, most * 1.32], **each)
    layout = draw.plane(horizontal, upwards, hovermode="x")
    return Figure("step-times", "Step times", summary, traces, layout, 280)


def _counts(histogram: Histogram) -> Trace:
    pairs = zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False)
    texts = [f"{number:,} of {short_seconds(low)} to {short_seconds(high)}" for low, high, number in pairs]
    held = {"x": draw.rounded(histogram.edges), "y": [*histogram.counts, histogram.counts[-1]]}
    style = {"fillcolor": "rgba(35, 131, 210, 0.45)", "line": {"color": draw.BLUE, "width": 1, "shape": "hv"}}
    shown = {"customdata": [*texts, texts[-1]], "hovertemplate": "%{customdata}<extra></extra>"}
    return {"type": "scatter", "mode": "lines", "name": "steps", **held, "fill": "tozeroy", **style, **shown}


def throughput(steps: StepSeries, tokens: TokenAccount, ranks: int) -> Figure | Missing:
    rates = tokens_per_second(steps)
    if not any(rate is not None for rate in rates):
        return Missing("Throughput", "the tokens of the steps are not known" if len(steps) else "no step was recorded")
    where = draw.step_axis(steps)
    label = "tokens/s" if ranks <= 1 else "tokens/s of rank 0"
    drawn = draw.line(label, draw.rounded(where.centers), rates, draw.BLUE, hovertemplate="%{y:,.4~s}")
    traces = [{**drawn, **_points(len(rates), draw.BLUE)}]
    mean, on = tokens.non_padding_tokens_per_second, " on all ranks" if ranks > 1 else ""
    mean_text = told(mean, "{:,.0f}".format, f" Over the run: {{}} per second{on}.")
    if mean is not None and ranks <= 1:
        ends = [where.starts[0], where.ends[-1]]
        traces.append(draw.level("over the run", ends, mean, draw.ORANGE, width=1.5, dash="dash"))
    summary = f"Tokens without padding per second of training, evaluations and checkpoints apart.{mean_text}"
    return Figure("throughput", "Throughput", summary, traces, _over_steps(where, "tokens per second"), 280, "step")


def step_tokens(steps: StepSeries) -> Figure | Missing:
    """Nested areas: what was processed, what of it is no padding, what of that is a target; the outer kind first."""
    where = draw.step_axis(steps)
    x = draw.rounded(where.centers)
    traces = [
        draw.area(label, x, per_step(sums, steps), color, shape="hvh", fill="tozeroy", hovertemplate="%{y:,.4~s}")
        for kind, label, color in called("token_curves")
        if any(sums := getattr(steps, f"{kind}_tokens"))
    ]
    if not traces:
        return Missing("Tokens per step", "tokens were not counted" if len(steps) else "no step was recorded")
    layout = _over_steps(where, "tokens per step")
    return Figure("step-tokens", "Tokens per step", "Each area is part of the one before.", traces, layout, 260, "step")


def _over_steps(where: StepAxis, title: str) -> dict[str, Any]:
    return draw.plane(where.layout(), draw.axis(title, rangemode="tozero"), shapes=where.resumptions())


def sequence_lengths(sequences: SequenceAccount) -> Figure | Missing:
    if not sequences.length_buckets:
        return Missing("Sequence lengths", "the lengths of the sequences were not counted")
    bounds = sorted(int(bound) for bound in sequences.length_buckets)
    summary = f"{counted(sum(sequences.length_buckets.values()), 'document')} by their tokens without padding"
    summary += told(sequences.mean_tokens, "{:,.1f}".format, ", {} on average")
    if sequences.shortest_tokens is not None and sequences.longest_tokens is not None:
        summary += f", from {sequences.shortest_tokens:,} to {sequences.longest_tokens:,}"
    trace = {
        "type": "bar",
        "x": draw.rounded(math.log2(bound) - _OCTAVE_PART / 2 for bound in bounds),
        "y": [sequences.length_buckets[str(bound)] for bound in bounds],
        "width": _OCTAVE_PART,
        "customdata": [f"≤ {bound:,}" for bound in bounds],
        "marker": {"color": "#65b5f4"},
        "hovertemplate": "%{customdata} tokens: %{y:,} documents<extra></extra>",
    }
    powers = range(math.floor(math.log2(bounds[0])), math.ceil(math.log2(bounds[-1])) + 1)
    ticks = {"tickvals": list(powers), "ticktext": [f"{2**power:,}" for power in powers]}
    horizontal = draw.axis("tokens of a document", showgrid=False, zeroline=False, **ticks)
    layout = draw.plane(horizontal, draw.axis("documents", rangemode="tozero"), hovermode="closest")
    return Figure("sequence-lengths", "Sequence lengths", f"{summary}.", [trace], layout, 260)


def training_curve(steps: StepSeries, evaluations: Sequence[Evaluation]) -> Figure | Missing:
    """The logged loss (with its least and most where steps are put together), and below it what else was logged."""
    where = draw.step_axis(steps)
    places = draw.evaluation_places(evaluations, steps, where)
    losses = [*_losses(steps, where), *_evaluated(evaluations, places)]
    panels = [("loss", losses)] if losses else []
    others = (("learning rate", steps.learning_rate, draw.GREEN), ("gradient norm", steps.grad_norm, draw.ORANGE))
    panels += [(label, [_logged(values, label, color, where)]) for label, values, color in others if _is_known(values)]
    if not panels:
        return Missing("Loss", "no loss was logged; logging_steps says how often it is")
    traces, layout = draw.over_each_other(panels, _HEIGHTS[len(panels)], nticks=3, exponentformat="power")
    layout["yaxis"]["nticks"] = 6
    layout["xaxis"] = where.layout(anchor="free", position=0)
    layout["shapes"] = where.resumptions() + [draw.upright(at) for at in places if len(places) <= _MARKED]
    titles, height = [title for title, _ in panels], 200 + 90 * len(panels)
    title = sentence(" and ".join(filter(None, [", ".join(titles[:-1]), titles[-1]])))
    return Figure("training-curve", title, _summary(steps, evaluations), traces, layout, height, "step")


def preference_curve(steps: StepSeries, words: str) -> Figure | None:
    held, where = steps.preferences, draw.step_axis(steps)
    if not _is_known(held.get("margin", ())):
        return None
    rewards = [
        _logged(held[name], label, color, where) for name, label, color in called("reward_curves") if name in held
    ]
    panels = [("reward", rewards)]
    if "accuracy" in held:
        panels.append(("accuracy", [_logged(held["accuracy"], "accuracy", draw.ORANGE, where)]))
    traces, layout = draw.over_each_other(panels, _HEIGHTS[len(panels)], nticks=5)
    layout["xaxis"] = where.layout(anchor="free", position=0)
    summary = "Rewards are as TRL's trainer logged them; accuracy is the share of pairs that they order rightly."
    if words:
        summary = f"{sentence(words)}. {summary}"
    return Figure("preferences", "Preferences", summary, traces, layout, 320, "step")


def _is_known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _logged(values: Sequence[float | None], label: str, color: str, where: StepAxis) -> Trace:
    x, y = _known([end - 0.5 for end in where.ends], values)
    drawn = draw.line(label, x, y, color, width=2 if len(x) <= _DENSE else 1.2, hovertemplate="%{y:.4~g}")
    return {**drawn, **_points(len(x), color)}


def _known(places: Sequence[float], values: draw.Values) -> tuple[draw.Values, draw.Values]:
    known = [(at, value) for at, value in zip(places, values, strict=True) if value is not None]
    return draw.rounded(at for at, _ in known), [value for _, value in known]


def _points(number: int, color: str) -> dict[str, Any]:
    return {"mode": "lines+markers" if number <= _MARKED else "lines", "marker": {"color": color, "size": 5}}


def _losses(steps: StepSeries, where: StepAxis) -> list[Trace]:
    if not _is_known(steps.loss):
        return []
    drawn = _logged(steps.loss, "training loss", draw.BLUE, where)
    if steps.loss_min == steps.loss_max:
        return [drawn]
    edge = {"width": 0, "color": draw.BLUE}
    unseen = {"mode": "lines", "line": edge, "hoverinfo": "skip", "hovertemplate": None, "legendgroup": ""}
    low, high = ({**_logged(values, "", draw.BLUE, where), **unseen} for values in (steps.loss_min, steps.loss_max))
    return [low, {**high, "fill": "tonexty", "fillcolor": "rgba(35, 131, 210, 0.22)"}, drawn]


def _evaluated(evaluations: Sequence[Evaluation], places: Sequence[float]) -> list[Trace]:
    x, y = _known(places, [each.metrics.get("loss") for each in evaluations])
    if not x:
        return []
    few = len(x) <= _MARKED
    drawn = draw.line("evaluation loss", x, y, draw.PURPLE, width=1.5, dash="dot" if few else "solid", cliponaxis=False)
    marker = {"color": draw.PURPLE, "size": 9, "symbol": "diamond"}
    steps = [_after(each.step) for each in evaluations if each.metrics.get("loss") is not None]
    when = {"customdata": steps, "hovertemplate": "%{y:.4~g} %{customdata}"}
    return [{**drawn, "mode": "lines+markers" if few else "lines", "marker": marker, **when}]


def _after(step: int) -> str:
    return f"after step {step:,}" if step else "before training"


def _summary(steps: StepSeries, evaluations: Sequence[Evaluation]) -> str:
    known = [value for value in steps.loss if value is not None]
    parts = []
    if known:
        parts.append(f"The training loss, as the Trainer logged it: first {known[0]:.4g}, last {known[-1]:.4g}.")
    losses = [(each.step, loss) for each in evaluations if (loss := each.metrics.get("loss")) is not None]
    if losses:
        ends = losses[:1] + losses[1:][-1:]
        words = [f"{loss:.4g} {_after(step)}" for step, loss in ends]
        parts.append(f"On the evaluation data: {', '.join(words)}.")
    if 0 < len(evaluations) <= _MARKED:
        parts.append("Dotted lines are evaluations.")
    broken = sum(steps.not_finite)
    if broken:
        parts.append(f"{broken:,} of the logged losses and gradient norms are no finite number, and are not drawn.")
    return " ".join(parts)


def compared(kind: str, series: Sequence[StepSeries | None], labels: Sequence[str]) -> Figure | Missing:
    """``loss`` or ``step-times``: a line for each run that has it."""
    if kind == "loss":
        title, summary, nothing = "Training loss", "As the Trainer logged it.", "no run has logged any"
        column, hover, upwards = "loss", "%{y:.4~g}", draw.axis("loss")
    else:
        title, summary, nothing = "Step times", "Evaluations and checkpoints apart.", "no run has recorded a step"
        column, hover = "step_seconds_mean", "%{y:.3~s}s"
        upwards = draw.axis("seconds per step", rangemode="tozero")
    traces: list[Trace] = []
    end = 0.5
    for place, (steps, label) in enumerate(zip(series, labels, strict=True)):
        values = [] if steps is None else getattr(steps, column)
        if steps is None or not _is_known(values):
            continue
        where = draw.step_axis(steps)
        color, dash = RUN_STYLES[place % len(RUN_STYLES)]
        traces.append(draw.line(label, *_known(where.centers, values), color, dash=dash, hovertemplate=hover))
        end = max(end, where.ends[-1])
    if not traces:
        return Missing(title, nothing)
    missing = len(labels) - len(traces)
    summary += f" {missing} of the runs have no records of it." if missing else ""
    layout = draw.plane(StepAxis([0.5], [end], "step %{x:,.0f}", "optimizer step", []).layout(), upwards)
    return Figure(f"compare-{kind}", title, summary, traces, layout, 300, "step", selectable=False)
