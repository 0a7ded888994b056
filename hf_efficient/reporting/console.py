"""Where the time of a run went, as a table on a terminal.

Predicted and observed, as a table on a terminal.

The ranks of a run on a terminal.

The account of a run on a terminal.

A run that goes on, on a terminal: one screen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hf_efficient.accounting.live import RunView
from hf_efficient.records.account import PlanAccount, RunAccount, TimeAccount
from hf_efficient.reporting.labels import phase_label
from hf_efficient.reporting.profile_tables import profile_renderables
from hf_efficient.reporting.run_rows import (
    across_lines,
    device_rows,
    hourly_price,
    memory_rows,
    plan_notes,
    plan_rows,
    preflight_words,
    price_source,
    rank_rows,
    restart_words,
    told_parts,
    work_rows,
)
from hf_efficient.text import clock, count, grams, kilowatt_hours, seconds, share, short_count, short_seconds, size, usd

_BAR = 24


def time_table(time: TimeAccount, most: int | None = None) -> Table:
    """A line per phase, what no phase claimed, and the sum.

    Args:
        time: of the run.
        most: how many phases are shown, the longest, in the order in which a run goes through them; the others are put
            together. None: all.
    """
    wall = time.wall_seconds
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("where the time went", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for label, value in [*_rows(time, most), ("unattributed", time.unattributed_seconds)]:
        part = value / wall if wall > 0 else 0.0
        style = "dim" if label == "unattributed" else ""
        bar = "█" * round(_BAR * min(max(part, 0.0), 1.0))
        table.add_row(Text(label, style), f"{value:.2f}", f"{100 * part:.1f}%", Text(bar, "cyan"))
    table.add_row(Text("in all", "bold"), f"{wall:.2f}", "100.0%" if wall > 0 else "", "")
    return table


def _rows(time: TimeAccount, most: int | None) -> list[tuple[str, float]]:
    phases = time.phase_seconds
    shown = set(phases) if most is None else set(sorted(phases, key=lambda name: -phases[name])[:most])
    rows = [(phase_label(name), value) for name, value in phases.items() if name in shown]
    others = sum(value for name, value in phases.items() if name not in shown)
    return [*rows, ("other phases", others)] if len(shown) < len(phases) else rows


def plan_table(plan: PlanAccount) -> Iterator[RenderableType]:
    """A line per figure; why one is not known stands below them, once."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("planned and observed")
    for name in ("predicted", "observed", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in plan_rows(plan):
        table.add_row(f"  {row.label}", row.predicted, row.observed, row.error)
    yield table
    for note in plan_notes(plan):
        yield Text(f"  {note}", "dim")


_MOST = 16


def rank_renderables(account: RunAccount) -> Iterator[RenderableType]:
    """A table of the ranks, the first of many, and what came of their training together; nothing of one rank."""
    if account.across is None:
        return
    rows = rank_rows(account)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("rank", no_wrap=True)
    table.add_column("on")
    for name in ("training", *rows[0].phases, "waits", "memory"):
        table.add_column(name, justify="right", no_wrap=name == "memory", overflow="fold")
    for row in rows[:_MOST]:
        cells = (row.training, *row.phases.values(), row.waited or "n/a", row.memory or "n/a")
        table.add_row(Text(row.rank), Text(row.where), *cells)
    yield table
    if len(rows) > _MOST:
        yield Text(f"and {len(rows) - _MOST} more ranks: report.html, run.json", "dim")
    for line in across_lines(account):
        yield Text(line)


_MOST_PARTS = 4


def account_renderables(account: RunAccount) -> list[RenderableType]:
    """What to print, in order: how it ended, the time by phase, its other parts in a line each, the ranks, the plan,
    what instruments found and cost, the gaps."""
    return [
        _title(account),
        time_table(account.time),
        _facts(account),
        *rank_renderables(account),
        *_plan(account),
        *_profile(account),
        *_gaps(account),
    ]


def _title(account: RunAccount) -> Text:
    last = account.time.processes[-1]
    parts = told_parts(account)
    if account.ended == "died":
        doing = f", in {phase_label(last.open_phase)}" if last.open_phase else ""
        how = f"did not end: its last sign is {seconds(last.last_sign_at_seconds)} after its start{doing}"
        return Text(f"The run {how}{parts}", "bold red")
    wall = seconds(account.time.wall_seconds)
    if account.ended == "stopped":
        return Text(f"The run stopped after {wall}{parts}: {account.error}", "bold yellow")
    if account.ended == "error":
        return Text(f"The run failed after {wall}{parts}: {account.error}", "bold red")
    budget = account.money.budget
    why = f"; its budget ended it ({budget.reached})" if budget is not None and budget.reached is not None else ""
    return Text(f"The run took {wall}{parts}{why}", "bold")


def _facts(account: RunAccount) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    rows = [("steps", _steps(account)), ("tokens", _tokens(account)), *work_rows(account)]
    rows += [*memory_rows(account.memory), *device_rows(account)]
    rows += [("energy", _energy(account)), ("money", _money(account))]
    if account.restarts:
        rows.append(("restarts", "; ".join(restart_words(account.restarts))))
    if account.preflight is not None:
        rows.append(("preflight", "; ".join(preflight_words(account.preflight))))
    for name, text in rows:
        grid.add_row(name, Text(text))
    return grid


def _steps(account: RunAccount) -> str:
    steps = account.steps
    if steps.p50_seconds is None or steps.p95_seconds is None or steps.p99_seconds is None:
        return f"{steps.count}"
    times = ", ".join(
        f"{name} {short_seconds(value)}"
        for name, value in (("p50", steps.p50_seconds), ("p95", steps.p95_seconds), ("p99", steps.p99_seconds))
    )
    first = account.time.time_to_first_step_seconds
    until = f"; the first was done {seconds(first)} after the start" if first is not None else ""
    return f"{steps.count:,}: {times}, without {steps.warm_up_count} of warm-up{until}"


def _tokens(account: RunAccount) -> str:
    tokens = account.tokens
    told = [
        f"{count(value)} {name}"
        for name, value in (
            ("processed", tokens.processed),
            ("without padding", tokens.non_padding),
            ("bear loss", tokens.loss_bearing),
        )
        if value is not None
    ]
    if tokens.padding_share is not None:
        told.append(f"{share(tokens.padding_share)} padding")
    if tokens.non_padding_tokens_per_second is not None:
        told.append(f"{tokens.non_padding_tokens_per_second:,.0f} per second without padding in the training loop")
    return ", ".join(told) or "not counted"


def _energy(account: RunAccount) -> str:
    energy = account.energy
    if energy.joules is None:
        return "not known"
    told = kilowatt_hours(energy.joules)
    if energy.estimated:
        told += " (estimated)" if all(part.estimated for part in energy.parts) else " (in part estimated)"
    if 1 < len(energy.parts) <= _MOST_PARTS:
        told += f": {', '.join(f'{part.name} {kilowatt_hours(part.joules)}' for part in energy.parts)}"
    if energy.co2e_grams is None or energy.grid_grams_per_kwh is None:
        return told
    grid = f"{energy.grid_grams_per_kwh:g} g/kWh ({energy.grid_source})"
    return f"{told}; {grams(energy.co2e_grams)} CO2e at {grid}"


def _money(account: RunAccount) -> str:
    money = account.money
    if money.cost_usd is None or money.price_usd_per_hour is None:
        return "not known"
    told = f"{usd(money.cost_usd)} at {hourly_price(money)}"
    parts = [f"{told} ({'estimated: ' if money.estimated else ''}{price_source(money)})"]
    if money.usd_per_million_non_padding_tokens is not None:
        parts.append(f"{usd(money.usd_per_million_non_padding_tokens)} per million tokens without padding")
    phases = money.phase_usd or {}
    apart = [
        f"{label} {usd(phases[name])}"
        for name, label in (("evaluation", "evaluations"), ("checkpointing", "checkpoints"))
        if phases.get(name)
    ]
    return "; ".join([*parts, *([", ".join(apart)] if apart else [])])


def _plan(account: RunAccount) -> Iterator[RenderableType]:
    if account.plan is not None:
        yield from plan_table(account.plan)


def _profile(account: RunAccount) -> Iterator[RenderableType]:
    if account.profile is not None:
        yield from profile_renderables(account.profile)


def _gaps(account: RunAccount) -> Iterator[RenderableType]:
    if not account.not_measured:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_row("Not measured:")
    for gap in account.not_measured:
        grid.add_row(Text(f"  {gap.what}: {gap.why}"))
    yield grid


_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKS = 40
_MOST_PHASES = 6


def live_screen(view: RunView, run_dir: Path) -> RenderableType:
    """State, progress, losses, evaluations, and the account so far, in about twenty lines.

    Args:
        view: the run.
        run_dir: as the user named it.
    """
    return Group(
        _head(view, run_dir),
        *_progress(view),
        Text(),
        time_table(view.account.time, most=_MOST_PHASES),
        Text(),
        _live_facts(view),
    )


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """Bars between the smallest and the largest value, each the mean of its share of them: ``█▆▅▃▂▁``."""
    count = min(width, len(values))
    means = []
    for index in range(count):
        part = values[index * len(values) // count : (index + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = min(means, default=0.0), max(means, default=0.0)
    if high <= low:
        return _BLOCKS[0] * count
    return "".join(_BLOCKS[round((mean - low) / (high - low) * (len(_BLOCKS) - 1))] for mean in means)


def _head(view: RunView, run_dir: Path) -> Text:
    time, silence = view.account.time, seconds(view.silent_seconds)
    starts = f", {len(time.processes)} starts" if len(time.processes) > 1 else ""
    doing = time.processes[-1].open_phase
    what = f", in {phase_label(doing)}" if doing else ""
    name = Text(f"{run_dir}  ", "bold")
    if view.state == "running":
        return name.append(f"running for {seconds(time.wall_seconds)}{starts}{what}", "green")
    if view.state == "ended":
        return name.append(*_end(view, starts))
    killed = ": it was killed, or its machine stands still" if view.state == "gone" else ""
    return name.append(
        f"no sign of life for {silence}{killed}; it had run for {seconds(time.wall_seconds)}{starts}{what}", "bold red"
    )


def _end(view: RunView, starts: str) -> tuple[str, str]:
    account = view.account
    wall, budget = seconds(account.time.wall_seconds), account.money.budget
    if account.ended == "stopped":
        return f"stopped after {wall}{starts}: {account.error}", "bold yellow"
    if account.ended == "error":
        return f"failed after {wall}{starts}: {account.error}", "bold red"
    if budget is not None and budget.reached is not None:
        return f"ended by its budget after {wall}{starts}: {budget.reached}", "bold yellow"
    return f"ended after {wall}{starts}", "bold"


def _progress(view: RunView) -> list[RenderableType]:
    if view.max_steps is None:
        return []
    told = [f"{view.step:,}/{view.max_steps:,} steps"]
    if view.rest is not None:
        more = "more than " if view.rest.lower_bound else ""
        told.append(f"{more}{clock(view.rest.seconds)} left")
    cost = view.account.money.cost_usd
    if cost is not None:
        told.append(usd(cost) if view.total_usd is None else f"{usd(cost)} of about {usd(view.total_usd)}")
    grid = Table.grid(padding=(0, 2, 0, 0), expand=False)
    grid.add_row(ProgressBar(total=view.max_steps, completed=view.step, width=30), ", ".join(told))
    return [grid]


def _live_facts(view: RunView) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    told = {
        "loss": _losses(view.losses),
        "evaluated": _evaluated(view.account),
        "steps": _live_steps(view.account),
        "tokens": _live_tokens(view.account),
        "memory": _memory(view.account),
    }
    for name, text in told.items():
        if text:
            grid.add_row(name, Text(text))
    return grid


def _losses(losses: Sequence[float]) -> str:
    return f"{losses[0]:.4g} {sparkline(losses)} {losses[-1]:.4g}" if losses else ""


def _evaluated(account: RunAccount) -> str:
    if not account.evaluations:
        return ""
    last = account.evaluations[-1]
    figures = ", ".join(f"{name} {value:.4g}" for name, value in last.metrics.items() if value is not None)
    return f"after step {last.step}: {figures}"


def _live_steps(account: RunAccount) -> str:
    steps = account.steps
    if steps.p50_seconds is None or steps.p95_seconds is None:
        return ""
    return f"p50 {short_seconds(steps.p50_seconds)}, p95 {short_seconds(steps.p95_seconds)}"


def _live_tokens(account: RunAccount) -> str:
    tokens, told = account.tokens, []
    if tokens.non_padding_tokens_per_second is not None:
        told.append(f"{short_count(tokens.non_padding_tokens_per_second)} per second without padding")
    if tokens.padding_share is not None:
        told.append(f"{share(tokens.padding_share)} padding")
    if account.work.mfu is not None:
        told.append(f"{share(account.work.mfu)} MFU")
    return ", ".join(told)


def _memory(account: RunAccount) -> str:
    memory, told = account.memory, []
    if memory.device_peak_allocated_bytes is not None:
        told.append(f"{size(memory.device_peak_allocated_bytes)} allocated on the device")
    if memory.peak_rss_bytes is not None:
        told.append(f"{size(memory.peak_rss_bytes)} of the host's, at most")
    return ", ".join(told)
