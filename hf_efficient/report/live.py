"""A run that goes on, on a terminal: one screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hf_efficient.account.view import RunView
from hf_efficient.records import RunAccount
from hf_efficient.report.phases import phase_label
from hf_efficient.report.time_table import time_table
from hf_efficient.units import clock, seconds, share, short_count, short_seconds, size, usd

__all__ = ["live_screen", "sparkline"]

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
        _facts(view),
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


def _facts(view: RunView) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    told = {
        "loss": _losses(view.losses),
        "evaluated": _evaluated(view.account),
        "steps": _steps(view.account),
        "tokens": _tokens(view.account),
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


def _steps(account: RunAccount) -> str:
    steps = account.steps
    if steps.p50_seconds is None or steps.p95_seconds is None:
        return ""
    return f"p50 {short_seconds(steps.p50_seconds)}, p95 {short_seconds(steps.p95_seconds)}"


def _tokens(account: RunAccount) -> str:
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
