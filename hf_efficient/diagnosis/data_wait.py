"""What the training waited for when it waited for data: one calculation, so that its rules do not contradict.

Set apart are the wait for the first batch of an epoch, with starting and ending the epoch (see ``epoch_starts.py``),
and the part of the loading in which it waited for a core that others had (see the rule ``cpu_contention``). What is
left has one cause:

    elsewhere   the data set and the collator do not account for it: the sampler, pinning, copying between processes
    workers     they are busy, and more of them would hide half of it
    storage     else, most of the loading is the data set blocked: its CPU does nothing meanwhile
    transform   else, most of it is the data set computing
    collation   else, most of it is the collator

Without workers the slow part itself is named, and workers are the first of its remedies where cores lie idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from hf_efficient.diagnosis.case import Case, StepColumns
from hf_efficient.diagnosis.cores import compute_cores, cores_of_a_rank
from hf_efficient.diagnosis.load_parts import Part, helped_seconds, load_parts
from hf_efficient.estimate.loading import StepLoad, best_workers, loaded_step_seconds

__all__ = ["FEWEST_STEPS", "STARVED", "Cause", "DataWait", "data_wait"]

STARVED: Final = 0.10
"""Share of the loop's time from which on waiting for data is a finding."""

FEWEST_STEPS: Final = 5
_MOST = 0.5

Cause = Literal["none", "elsewhere", "workers", "storage", "transform", "collation"]


@dataclass(frozen=True)
class DataWait:
    """The wait for data of rank 0, without that for the first batch of an epoch and without waiting for cores.

    Attributes:
        seconds: over the run.
        share: of the loop's time.
        steps: of the run.
        step_seconds: mean of a step after warm-up, without evaluation and checkpointing, and what is set apart.
        wait_seconds: of that.
        load: what such a step computes and loads.
        parts: the loading of such a step: ``storage``, ``transform``, ``collation``.
        core_wait_seconds: that the loading of such a step waited for a core, beside all of these.
        ready: batches that lay ready when one was asked for; None without workers.
        workers: None where the loader did not tell.
        cores: for this process; None where they are not known.
    """

    seconds: float
    share: float
    steps: int
    step_seconds: float
    wait_seconds: float
    load: StepLoad
    parts: Mapping[str, Part]
    core_wait_seconds: float
    ready: float | None
    workers: int | None
    cores: float | None

    @cached_property
    def advised_workers(self) -> int | None:
        """How many would be best; None where that is no more than there are, or the cores are not known."""
        if self.cores is None:
            return None
        best = best_workers(self.load, self.cores)
        return best if best > (self.workers or 0) else None

    @property
    def saved_by_workers(self) -> float:
        """Seconds over the run that the advised workers save; never more than was waited."""
        if self.advised_workers is None or self.cores is None:
            return 0.0
        return self.saved_by(self.step_seconds - loaded_step_seconds(self.load, self.advised_workers, self.cores))

    def saved_by(self, seconds: float) -> float:
        """Over the run, where a step takes so much less; never more than was waited."""
        return self.steps * min(max(0.0, seconds), self.wait_seconds)

    def saved_without(self, part: str) -> float:
        """Seconds over the run that are saved where a part of the loading goes.

        Args:
            part: ``storage``, ``transform`` or ``collation``.
        """
        gone, load = self.parts[part], self.load
        blocked, cpu = load.blocked_seconds - gone.blocked_seconds, load.cpu_seconds - gone.cpu_seconds
        left = StepLoad(load.compute_seconds, load.compute_cores, max(0.0, blocked), max(0.0, cpu))
        cores = self.cores or load.compute_cores + 1
        return self.saved_by(self.step_seconds - loaded_step_seconds(left, self.workers or 0, cores))

    @cached_property
    def cause(self) -> Cause:
        """See the module."""
        if self.share < STARVED:
            return "none"
        loading = self.load.seconds
        beside = loading / self.workers if self.workers else loading
        if beside < _MOST * (self.step_seconds if self.workers else self.wait_seconds):
            return "elsewhere"
        kind: Cause = max(("storage", "transform", "collation"), key=lambda part: self.parts[part].seconds)
        if self.workers and self.saved_by_workers >= _MOST * self.seconds:
            return "workers"
        return kind


def data_wait(case: Case) -> DataWait | None:
    """The wait of a run.

    Args:
        case: the run.

    Returns:
        None where no loader was watched, or in fewer than five steps after warm-up.
    """
    first = case.first
    if first is None or "wait_seconds" not in first.loader:
        return None
    watched = first.steady & np.isfinite(first.loader["wait_seconds"])
    if int(watched.sum()) < FEWEST_STEPS:
        return None
    mean = {name: float(column[watched].mean()) for name, column in first.loader.items()}
    wait = mean["wait_seconds"] - mean["first_wait_seconds"]
    if "exposed_wait" in first.device_seconds:  # what a GPU has to do meanwhile hides the rest
        wait = min(wait, float(np.nanmean(first.device_seconds["exposed_wait"][watched])))
    boundary = mean["start_seconds"] + mean["end_seconds"] + mean["first_wait_seconds"]
    compute = max(0.0, float(first.step_seconds[watched].mean()) - boundary - wait)
    parts, core_wait = load_parts(mean)
    blocked, cpu = (sum(column) for column in zip(*parts.values(), strict=True))
    if core_wait > 0:
        wait *= (blocked + cpu) / (blocked + cpu + core_wait)
    steps = case.account.steps.count
    workers = case.facts.get("loader", {}).get("workers", case.argument("dataloader_num_workers"))
    helped = 0.0 if workers else helped_seconds(mean)
    return DataWait(
        seconds=wait * steps,
        share=case.share(wait * steps),
        steps=steps,
        step_seconds=compute + wait,
        wait_seconds=wait,
        load=StepLoad(compute, compute_cores(case), blocked, cpu, helped),
        parts=parts,
        core_wait_seconds=core_wait,
        ready=_ready(first, watched),
        workers=workers,
        cores=cores_of_a_rank(case),
    )


def _ready(first: StepColumns, watched: npt.NDArray[np.bool_]) -> float | None:
    ready, batches = first.loader.get("ready"), first.loader["batches"]
    if ready is None:
        return None
    asked = watched & np.isfinite(ready)
    return float(ready[asked].sum() / batches[asked].sum()) if batches[asked].sum() > 0 else None
