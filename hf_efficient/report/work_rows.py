"""The lines of sequences and work on a terminal."""

from __future__ import annotations

from hf_efficient.records import RunAccount, SequenceAccount, WorkAccount
from hf_efficient.units import count, flops, share

__all__ = ["work_rows"]


def work_rows(account: RunAccount) -> list[tuple[str, str]]:
    """Name and text of each line."""
    return [("sequences", _sequences(account.sequences)), ("work", _work(account.work))]


def _sequences(held: SequenceAccount) -> str:
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


def _work(work: WorkAccount) -> str:
    """``12.3 TFLOPs (14 TFLOPs computed), MFU 31.2% (HFU 40.1%) of 1.2 TFLOP/s (bf16, a matmul measured here)``."""
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
