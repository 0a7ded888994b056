"""What a plan says of a run on machines that may be taken away at any time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PlannedSpot"]


@dataclass(frozen=True)
class PlannedSpot:
    """A run on spot machines, in expectation.

    Attributes:
        price_usd_per_hour: of a machine while it runs; None where none is known.
        price_source: whose list price that is, and of which day.
        hours_between_preemptions: on average, as assumed.
        checkpoint_bytes: of one save.
        checkpoint_seconds: that training stands still for it.
        save_every_steps: optimizer steps between two saves that cost least (Daly); None without a time.
        overhead_share: running time beyond the work: saves, restarts and what is done again, as a share of the work.
        usd_per_million_tokens: with that overhead.
        preemptions, run_seconds, run_usd: of all steps, while a machine runs; None where their number is not known.
        reason: why there are no figures; None where there are.
    """

    price_usd_per_hour: float | None
    price_source: str | None
    hours_between_preemptions: float
    checkpoint_bytes: int
    checkpoint_seconds: float
    save_every_steps: int | None = None
    overhead_share: float | None = None
    usd_per_million_tokens: float | None = None
    preemptions: float | None = None
    run_seconds: float | None = None
    run_usd: float | None = None
    reason: str | None = None
