"""The evidence of a finding, plotted: which plot shows which rule, and what it costs where none does."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from hf_efficient.accounting.series import per_step
from hf_efficient.estimate.throughput import batch_time
from hf_efficient.records.account import StepTimes
from hf_efficient.records.findings import Finding
from hf_efficient.records.series import RunSeries, StepSeries
from hf_efficient.reporting.labels import phase_color, phase_label, phases_in_order
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Layer, Missing
from hf_efficient.reporting.plots.memory import memory_over_time
from hf_efficient.reporting.plots.steps import sequence_lengths, step_tokens, training_curve
from hf_efficient.reporting.plots.system import cores_figure, gpu_figure
from hf_efficient.reporting.run_data import RunData
from hf_efficient.text import seconds, share, short_seconds, size

_Kind = Callable[[Finding, RunData, RunSeries, str], Figure | None]
_AS_IT_RAN, _WITH = "as it ran", "with remedy 1"
_PAUSES = ("evaluation", "checkpointing")
_COMPUTING = ("forward", "backward", "device_wait", "forward_backward")
_REST_COLOR = "#b3bac4"
_FEWEST_POINTS = 3
_ROOM = 1.3
_ROOM_OF_POINTS = 1.15
_MOST = 0.98  # quantile of the times that has the height: a few slow steps do not flatten the others


def finding_figure(number: int, finding: Finding, run: RunData) -> Figure | None:
    """The evidence of a finding, which ranks as ``number`` from 1; without data for it, its cost of the loop's time."""
    name = f"finding-{number}-evidence"
    if run.series is None or run.diagnosis is None:
        return None
    kind = KINDS.get(finding.rule)
    found = kind(finding, run, run.series, name) if kind is not None else None
    return found or cost_bar(finding, run.diagnosis.loop_seconds, name)


def _saved_seconds(finding: Finding) -> float | None:
    gain = finding.remedies[0].gain if finding.remedies else None
    return gain.seconds if gain is not None and gain.seconds else None


def cost_bar(finding: Finding, loop_seconds: float, name: str) -> Figure | None:
    """The loop's time with the finding's cost, above what the first remedy is predicted to leave of it."""
    spent = finding.cost.seconds
    if not spent or loop_seconds <= 0:
        return None
    spent = min(spent, loop_seconds)
    parts = [("the rest of the loop", _AS_IT_RAN, loop_seconds - spent, draw.GREY)]
    parts.append(("what it costs", _AS_IT_RAN, spent, draw.RED))
    rows = [_AS_IT_RAN]
    part = share(spent / loop_seconds)
    summary = f"Of the training loop's {seconds(loop_seconds)} it costs {seconds(spent)}, {part}."
    saved = _saved_seconds(finding)
    if saved is not None:
        left = max(loop_seconds - saved, 0.0)
        parts.append(("with the first remedy (estimated)", _WITH, left, draw.GREEN))
        rows = [_WITH, _AS_IT_RAN]  # from the bottom up
        summary += f" With the first remedy the same training is predicted to take {seconds(left)}."
    where = draw.time_axis(loop_seconds)
    traces = [draw.bar(label, color, where.places([held]), [row], [seconds(held)]) for label, row, held, color in parts]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.35,
        "hovermode": "closest",
        "xaxis": {**where.layout(), "title": {"text": f"the training loop, {where.unit}", "standoff": 6}},
        "yaxis": draw.axis("", fixedrange=True, categoryorder="array", categoryarray=rows),
    }
    return Figure(name, "Of the loop's time", summary, traces, layout, 84 + 34 * len(rows), zoomable=False)


def _phase_evidence(
    finding: Finding, run: RunData, series: RunSeries, name: str, phases: Sequence[str]
) -> Figure | None:
    """Seconds per step with the finding's phases on top, their mean, and the mean that the first remedy would leave.
    Evaluations and checkpoints, which tower over steps, are left out elsewhere. None where no such phase was seen."""
    steps, counts = series.steps, np.asarray(series.steps.steps)
    known = {one: np.asarray(sums) / counts for one, sums in steps.phase_seconds.items() if any(sums)}
    held = {one: known[one] for one in phases if one in known}
    if not held:
        return None
    left_out = [one for one in _PAUSES if one in known and one not in held]
    spent = np.sum(list(held.values()), axis=0)
    walls = np.asarray(steps.wall_seconds) / counts - sum(known[one] for one in left_out)
    rest = np.maximum(walls - spent, 0.0)
    whole, number = float((spent + rest) @ counts), int(counts.sum())
    mean = whole / number
    where = draw.step_axis(steps)
    layers = [Layer(phase_label(one), phase_color(one), part.tolist()) for one, part in held.items()]
    layers.insert(0, Layer("everything else", _REST_COLOR, rest.tolist()))
    traces = draw.stack_traces(layers, where.centers, where.widths if counts.max() > 1 else None)
    took = share(float(spent @ counts) / whole)
    summary = f"{_named(list(held))} {took} of a mean of {short_seconds(mean)} per step."
    ends = [where.starts[0], where.ends[-1]]
    traces.append(draw.level("mean", ends, mean, draw.RED, dash="dot"))
    saved = _saved_seconds(finding)
    if saved is not None and saved < whole:
        after = (whole - saved) / number
        traces.append(draw.level("mean with the first remedy (estimated)", ends, after, draw.GREEN, dash="dash"))
        summary += f" With the first remedy that mean is predicted to be {short_seconds(after)}."
    if left_out:
        summary += f" Left out: {', '.join(map(phase_label, left_out))}."
    layout = draw.step_layout(steps, where)
    top, clipped = _top(spent, spent + rest, run.account.steps)
    layout["yaxis"]["range"] = [0, top]
    if clipped:
        summary += " Some steps reach above the plot, by something else."
    return Figure(name, "Seconds per step", summary, traces, layout, 260, "step", selectable=False)


def _named(phases: Sequence[str]) -> str:
    names = [phase_label(one) for one in phases]
    words = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{words[0].upper()}{words[1:]} {'takes' if len(names) == 1 else 'take'}"


def _top(spent: Any, totals: Any, times: StepTimes) -> tuple[float, bool]:
    """As high as nearly every step, and as the finding's phases at their most on such a step; whether that clips."""
    highest, place = float(totals.max()), int(spent.argmax())
    usual = _ROOM * times.p95_seconds if times.p95_seconds else highest
    top = max(usual, 1.05 * min(float(totals[place]), float(spent[place]) + usual))
    return min(top, 1.05 * highest), highest > top


def _batch_evidence(finding: Finding, run: RunData, series: RunSeries, name: str) -> Figure | None:
    """What a step takes over its tokens: a point per step, and the line down to no tokens; None without a line."""
    points = _points(series.steps)
    fitted = None if points is None else batch_time(points[:, 1], points[:, 0])
    if fitted is None:
        return None
    tokens, times = points[:, 0], points[:, 1]
    end = float(tokens.max())
    ends = [fitted.fixed_seconds, fitted.fixed_seconds + fitted.token_seconds * end]
    style: dict[str, Any] = {"marker": {"opacity": 0.6}, "hovertemplate": "%{x:,.4~s} tokens: %{y:.3~s}s"}
    steps = draw.markers("steps", draw.rounded(tokens.tolist()), times.tolist(), draw.BLUE, 5, **style)
    fit = draw.line("the line through them", draw.rounded([0.0, end]), ends, draw.RED, dash="dash", hoverinfo="skip")
    top = _ROOM_OF_POINTS * max(float(np.quantile(times, _MOST)), *ends)
    layout = {
        "hovermode": "closest",
        "xaxis": draw.axis("tokens of a step, padding included", range=[0, _ROOM_OF_POINTS * end], zeroline=False),
        "yaxis": draw.axis("seconds, forward and backward", range=[0, top], hoverformat=".3~s"),
    }
    summary = (
        f"Forward and backward of each step over its tokens. Where the line meets the left edge, at "
        f"{short_seconds(fitted.fixed_seconds)}, is what a step takes whatever it holds."
    )
    return Figure(name, "Time over tokens", summary, [steps, fit], layout, 260)


def _points(steps: StepSeries) -> Any:
    known = [steps.phase_seconds[one] for one in _COMPUTING if one in steps.phase_seconds]
    tokens = per_step(steps.processed_tokens, steps)
    spent = per_step([sum(sums) for sums in zip(*known, strict=True)], steps) if known else []
    pairs = [(one, two) for one, two in zip(tokens, spent, strict=False) if one and two]
    return np.asarray(pairs, dtype=float) if len(pairs) >= _FEWEST_POINTS else None


def _rank_evidence(finding: Finding, run: RunData, series: RunSeries, name: str) -> Figure | None:
    """Mean seconds of a step by phase, a bar per rank, without its pauses; None: one rank at most is known."""
    ranks = {rank: held for rank, held in sorted(run.rank_step_seconds.items()) if held}
    if len(ranks) < 2:
        return None
    labels = [f"rank {rank}" for rank in ranks]
    known = {one for held in ranks.values() for one, value in held.items() if value > 0 and one not in _PAUSES}
    traces = []
    for phase in phases_in_order(sorted(known)):
        values = [held.get(phase, 0.0) for held in ranks.values()]
        texts = [short_seconds(value) for value in values]
        traces.append(draw.bar(phase_label(phase), phase_color(phase), draw.rounded(values), labels, texts))
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.25,
        "hovermode": "closest",
        "xaxis": draw.axis("mean seconds of a step", rangemode="tozero"),
        "yaxis": draw.axis("", fixedrange=True, type="category", autorange="reversed"),
    }
    summary = "Where a mean step of each rank went, evaluations and checkpoints left out."
    height = 80 + min(36 * len(ranks), 560)
    return Figure(name, "By rank", summary, traces, layout, height, zoomable=False)


def _memory_evidence(finding: Finding, run: RunData, series: RunSeries, name: str) -> Figure | None:
    found = memory_over_time(run.account, series, kinds=False)
    shown = _shown(found, name, title="Memory over the run", height=260, selectable=False)
    if shown is None or run.memory_bytes is None:
        return shown
    ends, limit = shown.layout["xaxis"]["range"], run.memory_bytes
    drawn = draw.level("all that there is", ends, limit / draw.GIB, draw.PURPLE, width=1.5, dash="dash")
    traces = [*shown.traces, drawn]
    summary = f"{shown.summary} The line on top is all that there is: {size(limit)}."
    return dataclasses.replace(shown, traces=traces, summary=summary)


def _shown(figure: Figure | Missing | None, name: str, **parts: Any) -> Figure | None:
    return dataclasses.replace(figure, id=name, **parts) if isinstance(figure, Figure) else None


def _token_evidence(
    finding: Finding, run: RunData, series: RunSeries, name: str, *, kinds: tuple[str, ...]
) -> Figure | None:
    found = step_tokens(series.steps, run.account.tokens, kinds, name)
    if isinstance(found, Missing) or len(found.traces) != len(kinds):
        return None
    return _shown(found, name, selectable=False)


def _as_on_the_page(make: Callable[[RunData, RunSeries], Figure | Missing | None], **parts: Any) -> _Kind:
    return lambda finding, run, series, name: _shown(make(run, series), name, **parts)


_LENGTHS = _as_on_the_page(lambda run, series: sequence_lengths(run.account.sequences))
_CORES = _as_on_the_page(lambda run, series: cores_figure(run.account, series, run.cpus), height=260, selectable=False)
_LEARNING = _as_on_the_page(
    lambda run, series: training_curve(series.steps, run.account.evaluations), height=340, selectable=False
)


def _gpu_evidence(finding: Finding, run: RunData, series: RunSeries, name: str) -> Figure | None:
    held = {gpu: sum(map(sum, reasons.values())) for gpu, reasons in series.system.throttled.items()}
    worst = max(held, key=lambda gpu: held[gpu], default=None)
    found = None if worst is None else gpu_figure(run.account, series, worst, name)
    return _shown(found, name, selectable=False)


def _phases(*names: str) -> _Kind:
    return partial(_phase_evidence, phases=names)


def _of(kind: _Kind, *rules: str) -> dict[str, _Kind]:
    return dict.fromkeys(rules, kind)


KINDS: Final[dict[str, _Kind]] = {
    **_of(_phases("data_wait", "between_steps"), "data_storage", "data_transform", "data_collation"),
    **_of(_phases("data_wait", "between_steps"), "few_workers", "worker_start", "epoch_boundary"),
    **_of(_phases("host_to_device"), "host_to_device_copy"),
    **_of(_phases("device_wait", "bookkeeping"), "hidden_synchronisation"),
    **_of(_phases("bookkeeping", "unattributed"), "own_code"),
    **_of(_phases("logging", "between_steps"), "logging_cost"),
    **_of(_phases("evaluation"), "evaluations_cost"),
    **_of(_phases("checkpointing"), "saves_cost"),
    **_of(_phases("optimizer"), "optimizer_kernel"),
    **_of(_phases("compilation", "forward", "backward"), "recompilation"),
    **_of(_phases("communication", "backward"), "exposed_communication"),
    **_of(_phases("communication", "forward", "backward"), "sharding"),
    **_of(_phases(*_COMPUTING), "large_micro_batch", "launch_bound", "checkpointing_unneeded", "checkpointing_missing"),
    **_of(_phases(*_COMPUTING), "float32_products", "emulated_bfloat16", "attention_kernel", "silent_upcasts"),
    **_of(_batch_evidence, "small_micro_batch", "accumulation"),
    **_of(partial(_token_evidence, kinds=("processed", "non_padding")), "padding_waste"),
    **_of(partial(_token_evidence, kinds=("non_padding", "target")), "masked_labels", "few_loss_tokens"),
    **_of(_LENGTHS, "truncated_examples"),
    **_of(_memory_evidence, "memory_growth", "fragmentation", "logits_spike", "out_of_memory"),
    **_of(_memory_evidence, "near_out_of_memory", "optimizer_state", "unused_memory"),
    **_of(_CORES, "cpu_contention", "cpu_oversubscription"),
    **_of(_gpu_evidence, "throttling"),
    **_of(_rank_evidence, "straggler"),
    **_of(_LEARNING, "learning_rate_idle", "learning_rate_diverges", "no_gradient"),
    **_of(_LEARNING, "not_finite_steps", "scaler_skips"),
}
"""By rule; one that is not here is shown by what it costs of the loop's time."""
