"""The time of a step whose batches are loaded beside it.

A process that loads its own batches pays for them one after the other with its computing. ``n`` workers load beside it,
and three things can bind: the computing itself, the loading of a batch by one worker of ``n``, and the cores, which
have both to do:

    step(0) = compute + load
    step(n) = max(compute, load / n, (compute * compute_cores + load_cpu) / cores)

Waiting for a disk or a network takes no core, so that blocked loads overlap wholly, and loads of CPU work overlap only
where cores are idle. Threads that compute together all wait for the one whose core a worker took: where no whole core
is free, the part of the loading's CPU work that finds none is done one after the other with the computing:

    step(n) >= compute + load_cpu * (1 - free)    where free = cores - compute_cores < 1

It leaves out what a worker itself costs: copying a batch to the process that trains, its memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_NEAR_THE_BEST = 1.03
_BLOCKED = 0.5


@dataclass(frozen=True)
class StepLoad:
    """What a step computes and loads, by itself.

    Attributes:
        compute_seconds: of a step that waits for no data.
        compute_cores: that it keeps busy meanwhile.
        blocked_seconds: of loading its batches one after the other, what waits and takes no core.
        cpu_seconds: of that, what computes.
        helped_seconds: CPU time beside it of other threads of the process, such as a tokenizer's: a worker computes
            with one thread, and takes so much longer.
    """

    compute_seconds: float
    compute_cores: float
    blocked_seconds: float
    cpu_seconds: float
    helped_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Loading the step's batches one after the other."""
        return self.blocked_seconds + self.cpu_seconds


def loaded_step_seconds(load: StepLoad, workers: int, cores: float) -> float:
    """A step with so many workers.

    Hand-worked: 1 s of computing on one core, loads of 0.6 s blocked and 1.8 s of CPU; 0 workers 3.4 s; 1 worker on 4
    cores max(1, 2.4, 2.8 / 4) = 2.4 s; 3 workers max(1, 0.8, 0.7) = 1 s; on 2 cores max(1, 0.8, 1.4) = 1.4 s. Computing
    on both of 2 cores: 1 + 1.8 = 2.8 s, whatever the workers. With 1.2 s of other threads' help 1 worker on 4 cores
    takes 0.6 + 1.8 + 1.2 = 3.6 s, more than without.

    Args:
        load: what is to be done.
        workers: processes that load; 0: the one that trains.
        cores: for all of it.
    """
    if workers == 0:
        return load.compute_seconds + load.seconds
    cpu_seconds = load.cpu_seconds + load.helped_seconds
    on_cores = (load.compute_seconds * load.compute_cores + cpu_seconds) / cores
    free = max(0.0, cores - load.compute_cores)
    if free < 1:
        on_cores = max(on_cores, load.compute_seconds + cpu_seconds * (1 - free))
    return max(load.compute_seconds, (load.blocked_seconds + cpu_seconds) / workers, on_cores)


def best_workers(load: StepLoad, cores: float) -> int:
    """The fewest workers that come within 3% of the best.

    Not more than there are cores, or twice as many where loads are blocked in half of their time or more.

    Args:
        load: what is to be done.
        cores: for all of it.
    """
    most = max(1, math.floor(cores))
    if load.blocked_seconds >= _BLOCKED * load.seconds:
        most *= 2
    times = [loaded_step_seconds(load, workers, cores) for workers in range(1, most + 1)]
    return next(count for count, time in enumerate(times, start=1) if time <= _NEAR_THE_BEST * min(times))
