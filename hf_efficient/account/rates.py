"""What the buckets of a series come to per step and per second."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.records.series import StepSeries

__all__ = ["padding_share", "per_step", "tokens_per_second"]


def per_step(sums: Sequence[float | None], steps: StepSeries) -> list[float | None]:
    """The mean over a bucket's steps."""
    return [None if total is None else total / count for total, count in zip(sums, steps.steps, strict=True)]


def tokens_per_second(steps: StepSeries) -> list[float | None]:
    """Non-padding tokens of rank 0 over the time of the steps without evaluation and checkpointing."""
    times = (mean * count for mean, count in zip(steps.step_seconds_mean, steps.steps, strict=True))
    return [
        tokens / seconds if tokens is not None and seconds > 0 else None
        for tokens, seconds in zip(steps.non_padding_tokens, times, strict=True)
    ]


def padding_share(steps: StepSeries) -> list[float | None]:
    """1 - non-padding / processed."""
    return [
        1 - real / processed if processed and real is not None else None
        for processed, real in zip(steps.processed_tokens, steps.non_padding_tokens, strict=True)
    ]
