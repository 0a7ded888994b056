"""The pages of runs beside a first one, of a tuning, of a sweep, of how fast models answer, and of a plan."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_efficient.records.comparison import RunComparison
from hf_efficient.records.plan import Plan, PlannedGpu
from hf_efficient.records.trained_model import Latency, rising
from hf_efficient.records.tuning import Sweep, Tuning, curves
from hf_efficient.reporting import comparison, trials
from hf_efficient.reporting import plan as words
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_page import ended_words
from hf_efficient.reporting.html.run_sections import Tile
from hf_efficient.reporting.labels import all_phases, phase_color, phase_label, phases_in_order
from hf_efficient.reporting.plots import figure as draw
from hf_efficient.reporting.plots.figure import Figure, Trace
from hf_efficient.reporting.plots.over_time import planned_memory_over_steps, time_against_money
from hf_efficient.reporting.plots.steps import compared
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.trained_model import latency_notes, latency_table
from hf_efficient.text import count, counted, flops, seconds, size, usd


def compare_page(found: RunComparison, runs: Sequence[RunData], command: str) -> str:
    """``runs``: the first of each side; ``command`` makes the page again."""
    labels = [side.letter for side in found.sides]
    shown = []
    for side, run in zip(found.sides, runs, strict=True):
        ended = ended_words(run.account.time.processes[-1])
        more = f" and {len(side.directories) - 1} more" if len(side.directories) > 1 else ""
        shown.append({"letter": side.letter, "name": run.name, "directory": f"{run.directory}{more}", "ended": ended})
    named = [f"{label} {run.name}" for label, run in zip(labels, runs, strict=True)]
    series = [run.series.steps if run.series is not None and len(run.series.steps) else None for run in runs]
    changed = {"table": comparison.changed_table(found), "nothing": comparison.NOTHING_CHANGED}
    summary = {
        "rows": comparison.comparison_rows(found, [run.account for run in runs]),
        "labels": labels,
        "notes": list(comparison.note_lines(found)),
        "regressions": list(comparison.regression_lines(found)),
    }
    sections = [
        Section("summary", "In short", context=summary),
        Section("changed", "What changed", context=changed),
        Section("time", "Where the time went", context={"rows": _phase_rows(runs), "labels": labels}, short="Time"),
        Section("learning", "Loss", [compared("loss", series, named)], macro="figures"),
        Section("speed", "Step times", [compared("step-times", series, named)], macro="figures"),
    ]
    title = " and ".join([*(run.name for run in runs[:3]), *["more"] * (len(runs) > 3)])
    return render("compare", sections, title=title, kind="runs compared", command=command, runs=shown)


def _phase_rows(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    held = [all_phases(run.account.time) for run in runs]
    rows = []
    for name in phases_in_order(dict.fromkeys(name for phases in held for name in phases)):
        took = [f"{phases[name]:,.2f}" if name in phases else "" for phases in held]
        rows.append({"label": phase_label(name), "color": phase_color(name), "runs": took})
    return rows


def tune_page(found: Tuning, command: str, recipe_text: str) -> str:
    """``recipe_text``: of the tuned recipe, empty where nothing was changed; ``command`` makes the page again."""
    sections = [
        Section("summary", "In short", context={"tiles": _tiles(found)}),
        Section("ladder", "The ladder", context={"table": trials.ladder_table(found)}),
        Section("tried", "What was tried", context={"table": trials.tried_table(found)}, short="Tried"),
        Section("tuned", "The tuned recipe", context={"text": recipe_text}, short="Recipe") if recipe_text else None,
        _meaning(trials.notes(found)),
    ]
    facts: dict[str, Any] = {"title": f"{found.recipe}: tuning", "kind": "tuning", "command": command}
    return render("tune", sections, found=found, lines=[*trials.head_lines(found)], **facts)


def _meaning(notes: Iterable[str]) -> Section:
    return Section("tune_notes", "What the figures mean", context={"notes": list(notes)}, short="Notes")


def _tiles(found: Tuning) -> list[Tile]:
    first, last = (f"{one.tokens_per_second:,.0f}" for one in (found.ladder[0], found.ladder[-1]))
    total, _, interval = ("", "", "") if found.total is None else trials.gain_words(found.total).partition(" [")
    interval = interval.rstrip("]").replace(", ", " to ")
    return [
        Tile("Tokens/s", last, f"from {first}"),
        Tile("Tuned beside original", total or None, f"{interval} in runs of their own".strip()),
        Tile("Trials", seconds(found.spent_seconds), "of the machine's time"),
    ]


def sweep_page(found: Sweep, command: str) -> str:
    held = {
        name: [(one.p95_seconds, one.tokens_per_second, one.name, one.is_knee) for one in points]
        for name, points in curves(found.points).items()
    }
    limit = found.settings["most_p95_seconds"]
    summary = "Along each line the first key rises; what lies further up and further left is better."
    drawn = _against_p95(held, summary, "p95 of a step, seconds", "tokens/s without padding", limit)
    curve = Section("curve", "Throughput and step time", [drawn], {"table": trials.points_table(found)}, "Points")
    sections = [curve, _meaning(trials.sweep_notes(found))]
    facts: dict[str, Any] = {"title": f"{found.recipe}: sweep", "kind": "sweep", "command": command}
    return render("sweep", sections, heading=found.recipe, lines=[*trials.sweep_lines(found)], **facts)


def latency_page(found: Latency, command: str) -> str:
    held = {
        f"{model.rstrip('/').rpartition('/')[2]}, {prompt:,} + {new:,} tokens": [
            (one.whole.p95, one.tokens_per_second, f"{one.at_a_time} at a time", one.is_knee)
            for one in points
            if one.whole is not None
        ]
        for (model, prompt, new), points in rising(found.points).items()
    }
    summary = "Along each line more requests are answered at a time; further up and further left is better."
    drawn = _against_p95(held, summary, "p95 of a whole answer, seconds", "new tokens/s of all requests")
    curve = Section("curve", "Throughput and time of an answer", [drawn], {"table": latency_table(found)}, "Points")
    sections = [curve, _meaning(latency_notes(found))]
    facts: dict[str, Any] = {"title": "latency", "kind": "latency", "command": command, "lines": []}
    return render("sweep", sections, heading="How fast models answer", **facts)


def _against_p95(
    held: Mapping[str, Sequence[tuple[float, float, str, bool]]],
    summary: str,
    x_label: str,
    y_label: str,
    limit: float | None = None,
) -> Figure:
    """Lines by name: p95, tokens/s, the name of the point, whether it is a knee."""
    colors = (draw.BLUE, draw.ORANGE, draw.GREEN, draw.PURPLE)
    traces: list[Trace] = []
    for place, (name, points) in enumerate(held.items()):
        x, y, names, _ = map(list, zip(*points, strict=True))
        hover = {"customdata": names, "hovertemplate": "%{customdata}: %{y:,.0f} tokens/s"}
        traces.append(draw.line(name or "measured", x, y, colors[place % 4], mode="lines+markers", **hover))
    knees = [(x, y) for points in held.values() for x, y, _, is_knee in points if is_knee]
    if knees:
        x, y = map(list, zip(*knees, strict=True))
        traces.append(draw.markers("knee", x, y, draw.RED, 12, hoverinfo="skip"))
    layout = {
        "xaxis": draw.axis(x_label, rangemode="tozero"),
        "yaxis": draw.axis(y_label, rangemode="tozero"),
        "shapes": [] if limit is None else [draw.upright(limit)],
    }
    return Figure("sweep_curve", "Tokens/s against p95", summary, traces, layout, 360)


def plan_page(plan: Plan, command: str) -> str:
    notes = {"assumptions": words.taken_for_granted(plan), "gaps": words.unknown_of(plan.gpus)}
    memory = plan.memory
    kinds = sorted(((name, held) for name, held in memory.categories.items() if held), key=lambda one: -one[1])
    at_peak = {"kinds": kinds, "memory": memory}
    answer = words.answer(plan) if plan.gpus else ""
    sections = [
        Section("summary", "In short", context={"tiles": planned_tiles(plan), "answer": answer}),
        Section("planned_memory", "Memory", [planned_memory_over_steps(memory)], at_peak),
        None if plan.data is None else Section("planned_data", "Data", context={"data": plan.data, "words": words}),
        _gpus(plan),
        _advice(plan),
        Section("planned_notes", "Taken for granted", context=notes, short="Assumptions"),
    ]
    fits = sum(gpu.fits for gpu in plan.gpus)
    return render("plan", sections, title=f"{plan.recipe}: plan", kind="plan", command=command, plan=plan, fits=fits)


def planned_tiles(plan: Plan) -> list[Tile]:
    bound = "" if plan.data is None else "at most: "
    shape = f"{bound}{words.step_words(plan)}, {flops(plan.flops_per_step)}FLOP"
    trained = f"of {count(plan.parameters)} ({plan.adapter})"
    peak = f"in the {words.peak_phase(plan.memory, 'of later steps')}"
    ranks, machines = plan.ranks, []
    if ranks is not None:
        machines = [Tile("GPUs", f"{ranks.count}", f"{words.strategy_label(ranks.strategy)}, memory is that of each")]
    if ranks is not None and ranks.offloaded:
        machines.append(Tile(*words.offload_figure(ranks), f"{words.offloaded_label(ranks.offloaded)} of all"))
    return [
        Tile("Peak allocated", size(plan.memory.peak_allocated_bytes), peak),
        Tile("Tokens in a step", f"{math.prod(plan.step_rows):,}", shape),
        Tile("Trained parameters", count(plan.trained_parameters), trained),
        *machines,
    ]


def _gpus(plan: Plan) -> Section | None:
    if not plan.gpus:
        return None
    columns = [column for column in words.gpu_columns(plan) if column.head not in ("fits", "why")]  # it marks the rows
    context = {
        "heads": ["accelerator", *(f"#{column.head}" for column in columns), "price from"],
        "rows": [(gpu, [str(column.cell(gpu)) for column in columns], _spot_source(gpu)) for gpu in plan.gpus],
    }
    return Section("planned_gpus", "Accelerators", [time_against_money(plan)], context)


def _spot_source(gpu: PlannedGpu) -> str:
    spot = gpu.spot
    if spot is None or spot.price_usd_per_hour is None:
        return ""
    every = f", saved every {counted(spot.save_every_steps, 'step')}" if spot.save_every_steps else ""
    return f"{usd(spot.price_usd_per_hour)} an hour from {spot.price_source}{every}"


def _advice(plan: Plan) -> Section | None:
    advice, largest = plan.advice, plan.largest
    if advice is None and largest is None:
        return None
    lines = () if largest is None else words.largest_lines(largest, plan.micro_batch_rows, plan.row_tokens)
    context = {"advice": advice, "words": words, "largest": largest, "lines": lines}
    return Section("planned_advice", "What to change", context=context, short="Advice")
