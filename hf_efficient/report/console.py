"""The account of a run on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.records import RunAccount
from hf_efficient.units import count, flops, seconds, share, short_seconds, size

__all__ = ["account_renderables"]

_BAR = 24
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
    """What to print, in order: how it ended, the time by phase, a line each for steps, tokens and so on, the gaps."""
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
    for name, text in (
        ("steps", _steps(account)),
        ("tokens", _tokens(account)),
        ("sequences", _sequences(account)),
        ("work", _work(account)),
        ("memory", _memory(account)),
    ):
        grid.add_row(name, text)
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


def _sequences(account: RunAccount) -> str:
    held = account.sequences
    told = []
    if held.samples is not None:
        rows = f" in {count(held.rows)} rows" if held.rows is not None and held.rows != held.samples else ""
        told.append(f"{count(held.samples)}{rows}")
    if held.samples_per_second is not None:
        told.append(f"{_rate(held.samples_per_second)} per second in the training loop")
    if held.mean_tokens is not None:
        told.append(f"{held.mean_tokens:,.0f} tokens each ({held.shortest_tokens:,} to {held.longest_tokens:,})")
    if held.fill_rate is not None:
        told.append(f"packs {share(held.fill_rate)} full")
    return ", ".join(told) or "not counted"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def _work(account: RunAccount) -> str:
    """``12.3 TFLOPs, MFU 31.2% (HFU 40.1%) of 1.20 TFLOP/s (bf16, a matmul measured here)``."""
    work = account.work
    if work.model_flops is None:
        return f"n/a: {work.reason or 'not known'}"
    told = f"{flops(work.model_flops)}FLOPs"
    if work.hardware_flops is not None:
        told += f" ({flops(work.hardware_flops)}FLOPs computed)"
    if work.mfu is None or work.peak_flops_per_second is None:
        return f"{told}, MFU n/a: {work.reason or 'not known'}"
    hfu = "n/a" if work.hfu is None else share(work.hfu)
    of = f"{work.accelerators} x " if work.accelerators > 1 else ""
    source = (work.peak_source or "").split(":")[0]
    of += f"{flops(work.peak_flops_per_second)}FLOP/s ({work.dtype}, {source})"
    return f"{told}, MFU {share(work.mfu)} (HFU {hfu}) of {of}"


def _memory(account: RunAccount) -> str:
    memory = account.memory
    told = []
    if memory.peak_rss_bytes is not None:
        told.append(f"{size(memory.peak_rss_bytes)} at most in the host's memory")
    if memory.device_peak_allocated_bytes is not None:
        told.append(f"{size(memory.device_peak_allocated_bytes)} allocated on the device")
    if memory.device_peak_reserved_bytes is not None:
        told.append(f"{size(memory.device_peak_reserved_bytes)} reserved")
    if memory.device_allocation_retries:
        told.append(f"{memory.device_allocation_retries} allocation retries")
    return ", ".join(told) or "not known"


def _gaps(account: RunAccount) -> Iterator[RenderableType]:
    if not account.not_measured:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_row("Not measured:")
    for gap in account.not_measured:
        grid.add_row(Text(f"  {gap.what}: {gap.why}"))
    yield grid
