"""The account of a run on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import RunAccount
from hf_efficient.report.memory_rows import device_rows, memory_rows
from hf_efficient.units import count, grams, kilowatt_hours, seconds, share, short_seconds, usd

__all__ = ["account_renderables"]

_BAR = 24
_MOST_PARTS = 4
_LABELS = {
    "imports": "start of Python, imports",
    "before_trainer": "before the trainer",
    "model_load": "model load",
    "data_preparation": "data preparation",
    "trainer_setup": "trainer set-up",
    "data_wait": "data wait",
    "host_to_device": "host to device",
    "forward_backward": "forward and backward",
    "between_steps": "data wait and logging",
    "outside_trainer": "outside the trainer",
}


def account_renderables(account: RunAccount) -> list[RenderableType]:
    """What to print, in order: how it ended, the time by phase, a line each for its other parts, and the gaps."""
    return [_title(account), _time_table(account), _facts(account), *_gaps(account)]


def _time_table(account: RunAccount) -> Table:
    wall = account.time.wall_seconds
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("where the time went", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    rows = [(_LABELS.get(name, name), value) for name, value in account.time.phase_seconds.items()]
    for label, value in [*rows, ("unattributed", account.time.unattributed_seconds)]:
        part = value / wall if wall > 0 else 0.0
        style = "dim" if label == "unattributed" else ""
        bar = "█" * round(_BAR * min(max(part, 0.0), 1.0))
        table.add_row(Text(label, style), f"{value:.2f}", f"{100 * part:.1f}%", Text(bar, "cyan"))
    table.add_row(Text("in all", "bold"), f"{wall:.2f}", "100.0%" if wall > 0 else "", "")
    return table


def _title(account: RunAccount) -> Text:
    last = account.time.processes[-1]
    parts = len(account.time.processes)
    starts = f", {parts} starts" if parts > 1 else ""
    if account.ended == "died":
        doing = f", in {_LABELS.get(last.open_phase, last.open_phase)}" if last.open_phase else ""
        how = f"did not end: its last sign is {seconds(last.last_sign_at_seconds)} after its start{doing}"
        return Text(f"The run {how}{starts}", "bold red")
    if account.ended == "error":
        return Text(f"The run failed after {seconds(account.time.wall_seconds)}{starts}: {account.error}", "bold red")
    return Text(f"The run took {seconds(account.time.wall_seconds)}{starts}", "bold")


def _facts(account: RunAccount) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    rows = [("steps", _steps(account)), ("tokens", _tokens(account)), *memory_rows(account.memory)]
    rows += [*device_rows(account), ("energy", _energy(account)), ("money", _money(account))]
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
    told = f"{usd(money.cost_usd)} at {usd(money.price_usd_per_hour)}/h"
    source = f"estimated: {money.price_source}" if money.estimated else money.price_source
    parts = [f"{told} ({source})"]
    if money.usd_per_million_non_padding_tokens is not None:
        parts.append(f"{usd(money.usd_per_million_non_padding_tokens)} per million tokens without padding")
    phases = money.phase_usd or {}
    apart = [
        f"{label} {usd(phases[name])}"
        for name, label in (("evaluation", "evaluations"), ("checkpointing", "checkpoints"))
        if phases.get(name)
    ]
    return "; ".join([*parts, *([", ".join(apart)] if apart else [])])


def _gaps(account: RunAccount) -> Iterator[RenderableType]:
    if not account.not_measured:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_row("Not measured:")
    for gap in account.not_measured:
        grid.add_row(Text(f"  {gap.what}: {gap.why}"))
    yield grid
