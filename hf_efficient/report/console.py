"""The account of a run on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import RunAccount
from hf_efficient.report.hourly_price import hourly_price, price_source
from hf_efficient.report.memory_rows import device_rows, memory_rows
from hf_efficient.report.parts import told_parts
from hf_efficient.report.phases import phase_label
from hf_efficient.report.plan_table import plan_table
from hf_efficient.report.preflight_words import preflight_words
from hf_efficient.report.profile_table import profile_renderables
from hf_efficient.report.rank_table import rank_renderables
from hf_efficient.report.restart_words import restart_words
from hf_efficient.report.time_table import time_table
from hf_efficient.report.work_rows import work_rows
from hf_efficient.units import count, grams, kilowatt_hours, seconds, share, short_seconds, usd

__all__ = ["account_renderables"]

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
