"""A planned run on machines that may be taken away: how often to save, and what it comes to."""

from __future__ import annotations

import dataclasses

from hf_efficient.estimate.cost import cost_per_million_tokens, cost_usd
from hf_efficient.estimate.spot import daly_interval, spot_run
from hf_efficient.planning.terms import Terms
from hf_efficient.records.plan import PlannedGpu, PlannedSpot


def planned_spot(
    gpu: PlannedGpu, price_usd_per_hour: float | None, price_source: str | None, terms: Terms
) -> PlannedSpot:
    """The run of these terms on such machines, in expectation (``estimate.spot``).

    Saves come after whole optimizer steps, nearest to Daly's interval. Where the number of steps is not known, the
    overhead is that of one interval, as of a run without end.

    Args:
        gpu: its time where nothing is lost, without saves.
        price_usd_per_hour: of a machine while it runs; None where not known.
        price_source: whose price that is.
        terms: of the run.
    """
    between = terms.spot.hours_between_preemptions * 3600
    save = terms.save_seconds
    found = PlannedSpot(
        price_usd_per_hour=price_usd_per_hour,
        price_source=price_source,
        hours_between_preemptions=terms.spot.hours_between_preemptions,
        checkpoint_bytes=terms.checkpoint_bytes,
        checkpoint_seconds=save,
    )
    if gpu.step_seconds is None:
        return dataclasses.replace(found, reason="the time of a step is not known")
    every = max(1, round(daly_interval(save, between) / gpu.step_seconds))
    interval = every * gpu.step_seconds
    work = interval if gpu.run_seconds is None else gpu.run_seconds
    run = spot_run(work, save, between, restart_seconds=terms.spot.restart_seconds, interval_seconds=interval)
    if run.paid_seconds is None:
        return dataclasses.replace(found, reason=run.reason)
    usd = cost_usd(gpu.step_seconds * run.paid_seconds / work, price_usd_per_hour)
    return dataclasses.replace(
        found,
        save_every_steps=every,
        overhead_share=run.paid_seconds / work - 1,
        usd_per_million_tokens=cost_per_million_tokens(usd, terms.tokens),
        preemptions=None if gpu.run_seconds is None else run.preemptions,
        run_seconds=None if gpu.run_seconds is None else run.paid_seconds,
        run_usd=None if gpu.run_seconds is None else cost_usd(run.paid_seconds, price_usd_per_hour),
    )
