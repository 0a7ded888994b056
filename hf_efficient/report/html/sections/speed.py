"""Throughput, and the distribution of the step times."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plots.figure import Figure, Missing
from hf_efficient.report.plots.step_times import step_times
from hf_efficient.report.plots.throughput import throughput
from hf_efficient.report.run_data import RunData
from hf_efficient.units import flops, seconds, share, short_seconds

__all__ = ["speed"]


def speed(run: RunData) -> Section:
    """Two plots, and how well the device was used."""
    account, series = run.account, run.series
    figures: list[Figure | Missing]
    if series is None:
        figures = [Missing("Throughput", "only run.json was kept of this run, not its records")]
    else:
        figures = [
            throughput(series.steps, account.tokens, len(account.ranks)),
            step_times(account.steps, series.step_seconds),
        ]
    return Section("speed", "Throughput and step times", figures, {"facts": _facts(run)}, "Speed")


def _facts(run: RunData) -> list[tuple[str, str, bool]]:
    """Name, figure, and whether it is estimated."""
    steps, work, facts = run.account.steps, run.account.work, []
    for name in ("p50", "p95", "p99", "max"):
        value = getattr(steps, f"{name}_seconds")
        if value is not None:
            facts.append((f"step time, {'longest' if name == 'max' else name}", short_seconds(value), False))
    if steps.warm_up_max_seconds is not None:
        facts.append(("longest step of the warm-up", short_seconds(steps.warm_up_max_seconds), False))
    if run.account.time.time_to_first_step_seconds is not None:
        facts.append(("until the first step was done", seconds(run.account.time.time_to_first_step_seconds), False))
    if run.account.sequences.samples_per_second is not None:
        facts.append(("samples per second", f"{run.account.sequences.samples_per_second:,.3g}", False))
    if work.model_flops is not None:
        facts.append(("work of the model", f"{flops(work.model_flops)}FLOP", False))
    if work.hardware_flops is not None:
        facts.append(
            ("work of the hardware, with padding and recomputation", f"{flops(work.hardware_flops)}FLOP", False)
        )
    if work.mfu is not None:
        facts.append(("model FLOPs utilization (MFU)", share(work.mfu), work.peak_estimated))
    if work.hfu is not None:
        facts.append(("hardware FLOPs utilization (HFU)", share(work.hfu), work.peak_estimated))
    if work.peak_flops_per_second is not None:
        where = f" ({work.peak_source})" if work.peak_source else ""
        told = f"{flops(work.peak_flops_per_second)}FLOP/s in {work.dtype or 'the dtype in use'}{where}"
        facts.append(("peak of one accelerator", told, work.peak_estimated))
    return facts
