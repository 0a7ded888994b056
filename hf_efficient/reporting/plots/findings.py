"""What the first remedy of a finding is predicted to save.

What a finding costs of the training loop, as one bar: the plot of a finding that has no other.

The phases that a finding is about, step by step, against everything else.

What a step takes over the tokens that it holds: what is paid for a batch whatever is in it.

Memory over the time of a run against what there is of it.

The ranks of a run beside each other: which one the others wait for.

The machine over the time of a run, where a finding says that it held the run back.

The positions that a finding is about, step by step: what was computed, and what of it counts.

How long the sequences were, where a finding says that they were cut.

How a run learned, where a finding says that it did not.

Which plot shows the evidence of which rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from hf_efficient.accounting.series import per_step
from hf_efficient.estimate.throughput import batch_time
from hf_efficient.records.account import StepTimes
from hf_efficient.records.findings import Finding
from hf_efficient.records.series import StepSeries
from hf_efficient.records.steps import PHASES
from hf_efficient.reporting.labels import phase_color, phase_label
from hf_efficient.reporting.plots.figure import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    RED,
    Figure,
    StepAxis,
    TimeAxis,
    axis,
    legend_of,
    rounded,
    stack_traces,
    step_axis,
    step_layer,
    step_layout,
    time_axis,
)
from hf_efficient.reporting.plots.memory import GIB, memory_over_time
from hf_efficient.reporting.plots.steps import sequence_lengths, step_tokens, training_curve
from hf_efficient.reporting.plots.system import cores_figure, gpu_figure
from hf_efficient.reporting.run_data import RunData
from hf_efficient.text import seconds, share, short_seconds, size


def predicted_seconds(finding: Finding) -> float | None:
    """Of the loop's time for the same tokens; None where nothing is predicted of it."""
    gain = finding.remedies[0].gain if finding.remedies else None
    return gain.seconds if gain is not None and gain.seconds else None


_AS_IT_RAN, _WITH = "as it ran", "with remedy 1"


def cost_bar(finding: Finding, loop_seconds: float, name: str) -> Figure | None:
    """The loop's time with the part that the finding costs, above what the first remedy is predicted to leave of it.

    Args:
        finding: of a run.
        loop_seconds: that its costs and gains are held against.
        name: id of the figure.

    Returns:
        None where its cost in time is not known.
    """
    spent = finding.cost.seconds
    if not spent or loop_seconds <= 0:
        return None
    where = time_axis(loop_seconds)
    spent = min(spent, loop_seconds)
    traces = [
        _bar("the rest of the loop", _AS_IT_RAN, loop_seconds - spent, GREY, where),
        _bar("what it costs", _AS_IT_RAN, spent, RED, where),
    ]
    told = f"Of the training loop's {seconds(loop_seconds)} it costs {seconds(spent)}, {share(spent / loop_seconds)}."
    gained = predicted_seconds(finding)
    if gained is not None:
        left = max(loop_seconds - gained, 0.0)
        traces.append(_bar("with the first remedy (estimated)", _WITH, left, GREEN, where))
        told += f" With the first remedy the same training is predicted to take {seconds(left)}."
    rows = [_AS_IT_RAN] if gained is None else [_WITH, _AS_IT_RAN]  # from the bottom up
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.35,
        "hovermode": "closest",
        "xaxis": {**where.layout(), "title": {"text": f"the training loop, {where.unit}", "standoff": 6}},
        "yaxis": axis("", fixedrange=True, categoryorder="array", categoryarray=rows),
    }
    legend = legend_of(traces)
    return Figure(name, "Of the loop's time", told, traces, layout, 84 + 34 * len(rows), legend=legend, zoomable=False)


def _bar(label: str, row: str, value: float, color: str, where: TimeAxis) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "x": where.places([value]),
        "y": [row],
        "customdata": [seconds(value)],
        "marker": {"color": color},
        "hovertemplate": "%{customdata}",
    }


_ROOM = 1.3
_PAUSES = ("evaluation", "checkpointing")
_REST_COLOR = "#b3bac4"


def phase_evidence(finding: Finding, run: RunData, name: str, *, phases: Sequence[str]) -> Figure | None:
    """Seconds per step with the finding's phases on top, their mean, and the mean that the first remedy would leave.

    Evaluations and checkpoints are left out where the finding is not about them: they would tower over the steps.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
        phases: that the finding is about.

    Returns:
        None where none of these phases was seen.
    """
    parts = _parts(run, phases)
    if parts is None:
        return None
    steps = parts.steps
    where = step_axis(steps)
    layers = [step_layer("everything else", _REST_COLOR, parts.rest, steps)]
    layers += [step_layer(phase_label(one), phase_color(one), sums, steps) for one, sums in parts.held.items()]
    widths = where.widths if max(steps.steps) > 1 else None
    gained = predicted_seconds(finding)
    after = None if gained is None or gained >= parts.whole else (parts.whole - gained) / parts.count
    mean = parts.whole / parts.count
    traces = [*stack_traces(layers, where.centers, widths), *_means(mean, after, where)]
    layout = step_layout(steps, where)
    top, clipped = _top(parts, run.account.steps)
    layout["yaxis"]["range"] = [0, top]
    told = f"{_named(parts.held)} {share(sum(parts.spent) / parts.whole)} of a mean of {short_seconds(mean)} per step."
    if after is not None:
        told += f" With the first remedy that mean is predicted to be {short_seconds(after)}."
    if parts.left_out:
        told += f" Left out: {', '.join(map(phase_label, parts.left_out))}."
    if clipped:
        told += " Some steps reach above the plot, by something else."
    legend = legend_of(traces)
    return Figure(name, "Seconds per step", told, traces, layout, 260, "step", legend=legend, selectable=False)


@dataclass(frozen=True)
class _Parts:
    """The steps by what the finding is about; sums by bucket.

    Attributes:
        held: its phases, those that occurred.
        spent: all of them together.
        rest: everything else.
        left_out: pauses that are in neither.
    """

    steps: StepSeries
    held: dict[str, list[float]]
    spent: list[float]
    rest: list[float]
    left_out: list[str]

    @property
    def whole(self) -> float:
        return sum(self.spent) + sum(self.rest)

    @property
    def count(self) -> int:
        return sum(self.steps.steps)


def _parts(run: RunData, phases: Sequence[str]) -> _Parts | None:
    if run.series is None:
        return None
    steps = run.series.steps
    known = {one: sums for one, sums in steps.phase_seconds.items() if any(sums)}
    held = {one: known[one] for one in phases if one in known}
    if not held:
        return None
    left_out = [one for one in _PAUSES if one in known and one not in held]
    places = range(len(steps))
    spent = [sum(sums[place] for sums in held.values()) for place in places]
    paused = [sum(known[one][place] for one in left_out) for place in places]
    rest = [max(steps.wall_seconds[place] - paused[place] - spent[place], 0.0) for place in places]
    return _Parts(steps, held, spent, rest, left_out)


def _named(held: dict[str, list[float]]) -> str:
    names = [phase_label(one) for one in held]
    words = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{words[0].upper()}{words[1:]} {'takes' if len(names) == 1 else 'take'}"


def _top(parts: _Parts, times: StepTimes) -> tuple[float, bool]:
    """As high as nearly every step, and as the finding's phases at their most on such a step; whether that clips."""
    counts = parts.steps.steps
    spent = [seconds / count for seconds, count in zip(parts.spent, counts, strict=True)]
    totals = [more + seconds / count for more, seconds, count in zip(spent, parts.rest, counts, strict=True)]
    usual = _ROOM * times.p95_seconds if times.p95_seconds else max(totals)
    most = max(zip(spent, totals, strict=True))
    top = max(usual, 1.05 * min(most[1], most[0] + usual))
    return min(top, 1.05 * max(totals)), max(totals) > top


def _means(now: float, after: float | None, where: StepAxis) -> list[dict[str, Any]]:
    lines = [("mean", now, RED, "dot")]
    lines += [] if after is None else [("mean with the first remedy (estimated)", after, GREEN, "dash")]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "x": [where.starts[0], where.ends[-1]],
            "y": rounded([value, value]),
            "line": {"color": color, "width": 2, "dash": dash},
            "hoverinfo": "skip",
        }
        for label, value, color, dash in lines
    ]


_COMPUTING = ("forward", "backward", "device_wait", "forward_backward")
_FEWEST = 3
_BATCHES_ROOM = 1.15
_MOST = 0.98
"""Quantile of the times that has the height: a few slow steps do not flatten the others."""


def batch_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """A point per step, and the line through them down to a step without tokens.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.

    Returns:
        None where tokens or times are not known, or no line can be told.
    """
    points = None if run.series is None else _points(run.series.steps)
    if points is None:
        return None
    tokens, seconds = points
    line = batch_time(seconds, tokens)
    if line is None:
        return None
    end = float(tokens.max())
    ends = [line.fixed_seconds, line.fixed_seconds + line.token_seconds * end]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "steps",
            "x": rounded(tokens.tolist()),
            "y": rounded(seconds.tolist()),
            "marker": {"color": BLUE, "size": 5, "opacity": 0.6},
            "hovertemplate": "%{x:,.4~s} tokens: %{y:.3~s}s",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "the line through them",
            "x": rounded([0.0, end]),
            "y": rounded(ends),
            "line": {"color": RED, "width": 2, "dash": "dash"},
            "hoverinfo": "skip",
        },
    ]
    top = _BATCHES_ROOM * max(float(np.quantile(seconds, _MOST)), *ends)
    layout = {
        "hovermode": "closest",
        "xaxis": axis("tokens of a step, padding included", range=[0, _BATCHES_ROOM * end], zeroline=False),
        "yaxis": axis("seconds, forward and backward", range=[0, top], hoverformat=".3~s"),
    }
    told = (
        f"Forward and backward of each step over its tokens. Where the line meets the left edge, at "
        f"{short_seconds(line.fixed_seconds)}, is what a step takes whatever it holds."
    )
    return Figure(name, "Time over tokens", told, traces, layout, 260, legend=legend_of(traces))


def _points(steps: StepSeries) -> tuple[Any, Any] | None:
    """Tokens and seconds of a step, by bucket."""
    known = [steps.phase_seconds[one] for one in _COMPUTING if one in steps.phase_seconds]
    tokens = per_step(steps.processed_tokens, steps)
    seconds = per_step([sum(sums) for sums in zip(*known, strict=True)], steps)
    pairs = [(one, two) for one, two in zip(tokens, seconds, strict=False) if one and two]
    if len(pairs) < _FEWEST:
        return None
    columns = np.asarray(pairs, dtype=float)
    return columns[:, 0], columns[:, 1]


def memory_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """What was read about once per second, with a line at the memory of the device, or of the host where that trains.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.

    Returns:
        None where nothing was read.
    """
    if run.series is None:
        return None
    found = memory_over_time(run.account, run.series, kinds=False)
    if not isinstance(found, Figure):
        return None
    held = dataclasses.replace(found, id=name, title="Memory over the run", height=260, selectable=False)
    limit = run.memory_bytes
    if limit is None:
        return held
    traces = [*found.traces, _limit(limit, found.layout["xaxis"]["range"])]
    summary = f"{found.summary} The line on top is all that there is: {size(limit)}."
    return dataclasses.replace(held, traces=traces, summary=summary, legend=legend_of(traces))


def _limit(limit: int, ends: list[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "all that there is",
        "x": ends,
        "y": rounded([limit / GIB] * 2),
        "line": {"color": PURPLE, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }


_RANKS_PAUSES = ("evaluation", "checkpointing")


def rank_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Mean seconds of a step by phase, a bar per rank; evaluations and checkpoints are left out.

    Args:
        finding: of the run.
        run: with the seconds of its ranks.
        name: id of the figure.

    Returns:
        None where the steps of one rank at most are known.
    """
    ranks = {rank: held for rank, held in sorted(run.rank_step_seconds.items()) if held}
    if len(ranks) < 2:
        return None
    labels = [f"rank {rank}" for rank in ranks]
    known = {one for held in ranks.values() for one, value in held.items() if value > 0 and one not in _RANKS_PAUSES}
    names = [one for one in PHASES if one in known] + sorted(known - set(PHASES))
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": phase_label(one),
            "y": labels,
            "x": rounded(held.get(one, 0.0) for held in ranks.values()),
            "customdata": [short_seconds(held.get(one, 0.0)) for held in ranks.values()],
            "marker": {"color": phase_color(one)},
            "hovertemplate": "%{customdata}",
        }
        for one in names
    ]
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": 0.25,
        "hovermode": "closest",
        "xaxis": axis("mean seconds of a step", rangemode="tozero"),
        "yaxis": axis("", fixedrange=True, type="category", autorange="reversed"),
    }
    told = "Where a mean step of each rank went, evaluations and checkpoints left out."
    height = 80 + min(36 * len(ranks), 560)
    return Figure(name, "By rank", told, traces, layout, height, legend=legend_of(traces), zoomable=False)


def cores_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Who kept the cores busy; None where nobody looked.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
    """
    found = None if run.series is None else cores_figure(run.account, run.series, run.cpus, name)
    return None if found is None else dataclasses.replace(found, height=260, selectable=False)


def gpu_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """The GPU that was held back longest; None where none was.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
    """
    if run.series is None:
        return None
    held = {gpu: sum(map(sum, reasons.values())) for gpu, reasons in run.series.system.throttled.items()}
    worst = max(held, key=lambda gpu: held[gpu], default=None)
    found = None if worst is None else gpu_figure(run.account, run.series, worst, name)
    return None if found is None else dataclasses.replace(found, selectable=False)


def token_evidence(finding: Finding, run: RunData, name: str, *, kinds: tuple[str, ...]) -> Figure | None:
    """Tokens per step of two kinds, one within the other.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
        kinds: ``processed``, ``non_padding``, ``loss_bearing``: the outer one first.

    Returns:
        None where they were not counted.
    """
    if run.series is None:
        return None
    found = step_tokens(run.series.steps, run.account.tokens, kinds, name)
    if not isinstance(found, Figure) or len(found.traces) != len(kinds):
        return None
    return dataclasses.replace(found, selectable=False)


def length_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Documents by length; None where they were not counted.

    Args:
        finding: of the run.
        run: with its account.
        name: id of the figure.
    """
    found = sequence_lengths(run.account.sequences)
    return dataclasses.replace(found, id=name) if isinstance(found, Figure) else None


def learning_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Loss, learning rate and gradient norm as logged; None where none was.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
    """
    if run.series is None:
        return None
    found = training_curve(run.series.steps, run.account.evaluations)
    return dataclasses.replace(found, id=name, height=340, selectable=False) if isinstance(found, Figure) else None


_Kind = Callable[[Finding, RunData, str], Figure | None]


def _phases(*names: str) -> _Kind:
    return partial(phase_evidence, phases=names)


_LOADING = _phases("data_wait", "between_steps")
_CHOOSE_COMPUTING = _phases("forward", "backward", "device_wait", "forward_backward")
_LOSS_TOKENS = partial(token_evidence, kinds=("non_padding", "loss_bearing"))

KINDS: Final[dict[str, _Kind]] = {
    **dict.fromkeys(("data_storage", "data_transform", "data_collation"), _LOADING),
    **dict.fromkeys(("few_workers", "worker_start", "epoch_boundary"), _LOADING),
    "host_to_device_copy": _phases("host_to_device"),
    "hidden_synchronisation": _phases("device_wait", "bookkeeping"),
    "logging_cost": _phases("logging", "between_steps"),
    "evaluations_cost": _phases("evaluation"),
    "saves_cost": _phases("checkpointing"),
    "optimizer_kernel": _phases("optimizer"),
    "recompilation": _phases("compilation", "forward", "backward"),
    "exposed_communication": _phases("communication", "backward"),
    "sharding": _phases("communication", "forward", "backward"),
    **dict.fromkeys(("small_micro_batch", "accumulation"), batch_evidence),
    **dict.fromkeys(("large_micro_batch", "launch_bound"), _CHOOSE_COMPUTING),
    **dict.fromkeys(("float32_products", "emulated_bfloat16", "attention_kernel", "silent_upcasts"), _CHOOSE_COMPUTING),
    **dict.fromkeys(("checkpointing_unneeded", "checkpointing_missing"), _CHOOSE_COMPUTING),
    "padding_waste": partial(token_evidence, kinds=("processed", "non_padding")),
    "truncated_examples": length_evidence,
    **dict.fromkeys(("masked_labels", "few_loss_tokens"), _LOSS_TOKENS),
    **dict.fromkeys(("memory_growth", "fragmentation", "logits_spike"), memory_evidence),
    "out_of_memory": memory_evidence,
    **dict.fromkeys(("near_out_of_memory", "optimizer_state", "unused_memory"), memory_evidence),
    **dict.fromkeys(("cpu_contention", "cpu_oversubscription"), cores_evidence),
    "throttling": gpu_evidence,
    "straggler": rank_evidence,
    **dict.fromkeys(("learning_rate_idle", "learning_rate_diverges", "no_gradient"), learning_evidence),
    **dict.fromkeys(("not_finite_steps", "scaler_skips"), learning_evidence),
}
"""By rule; one that is not here is shown by what it costs of the loop's time."""


def finding_figure(number: int, finding: Finding, run: RunData) -> Figure | None:
    """The evidence of a finding, plotted; where its own kind of plot has no data, what it costs of the loop's time.

    Args:
        number: its rank among the findings, from 1.
        finding: of the run.
        run: whose diagnosis it is.

    Returns:
        None where neither is known.
    """
    name = f"finding-{number}-evidence"
    kind = KINDS.get(finding.rule)
    found = kind(finding, run, name) if kind is not None else None
    if found is None and run.diagnosis is not None:
        return cost_bar(finding, run.diagnosis.loop_seconds, name)
    return found
