"""What real code allocates, by the profiler's own events: an independent measure for what a simulation logs."""

import gc
from collections.abc import Callable
from itertools import accumulate

from torch.profiler import ProfilerActivity, profile


def real_allocations(code: Callable[[], object]) -> list[int]:
    """Bytes of each allocation (positive) and free (negative) on the CPU while ``code`` runs, in order.

    What it returns lives longer. Garbage of earlier tests is not collected meanwhile: the profiler would see its end.
    """
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            _kept = code()
    finally:
        gc.enable()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda one: one.start_ns())]


def most_at_once(changes: list[int]) -> int:
    """The largest sum that the changes, added up in order, come to."""
    return max(accumulate(changes), default=0)
