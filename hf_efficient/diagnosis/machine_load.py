"""What the sampler saw of the machine while the training loop ran."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.records.series import Band

__all__ = ["in_the_loop", "mean_in_the_loop"]


def in_the_loop(case: Case) -> list[int]:
    """Which buckets of ``series.system`` were read from the first step to the last; empty without a sampler."""
    series = case.series
    if series is None or not len(series.steps):
        return []
    began = series.steps.started_at_seconds[0]
    ended = series.steps.started_at_seconds[-1] + series.steps.wall_seconds[-1]
    system = series.system
    bounds = zip(system.started_at_seconds, system.ended_at_seconds, strict=True)
    return [place for place, (start, end) in enumerate(bounds) if start >= began and end <= ended]


def mean_in_the_loop(case: Case, name: str) -> float | None:
    """Mean of a figure of the host (see ``measure/probes/``) over the training loop.

    Args:
        case: the run.
        name: of the figure: ``other_cores``.

    Returns:
        None where it was not read.
    """
    if case.series is None:
        return None
    band = case.series.system.host.get(name, Band())
    read = [band.mean[place] for place in in_the_loop(case) if place < len(band.mean)]
    known = [value for value in read if value is not None]
    return sum(known) / len(known) if known else None
