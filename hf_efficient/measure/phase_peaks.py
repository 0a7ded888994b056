"""Peaks of the device's memory per step and phase, from the allocator's books on the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_efficient.records import StepMemory

__all__ = ["PhasePeaks"]

_PHASES = frozenset({"forward", "backward", "optimizer", "forward_backward", "evaluation", "checkpointing"})
_REST = 500


@dataclass
class _Step:
    """What is known of the step under way."""

    phase: str | None = None
    phases: dict[str, int] = field(default_factory=dict)
    allocated: int = 0
    reserved: int = 0
    retries: int = 0
    spent_ns: int = 0


class PhasePeaks:
    """Reads the allocator's peaks where a phase begins, and sets them back there.

    The largest peak of the phases is the step's. A phase's peak covers the time until the next one begins; what a step
    allocates before its first phase counts for the step alone. Setting a peak back is seen by everybody who asks torch
    for it in this process: whoever reads the run's peak takes ``keep``'s word with torch's.

    Nothing is asked of the device: torch's books are a dictionary of some 150 entries, which takes about 25 us to
    build (an estimate), four times per step and twice more per further micro-batch. So that this never takes more than
    1/500 of the time, short steps are looked at less often: the others have no figures of their own, and are set apart
    from those that have.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        reset: Callable[[], None],
        keep: Callable[[int, int], None],
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """What was allocated before belongs to no step.

        Args:
            read: the books, nested as ``torch.cuda.memory.memory_stats_as_nested_dict`` has them.
            reset: sets the peaks back to what is allocated now.
            keep: is told the peaks of allocated and reserved bytes before they are set back.
            now: a monotonic clock in nanoseconds.
        """
        self._read, self._reset, self._keep, self._now = read, reset, keep, now
        self._looking = True
        self._rest_until_ns = self._began_ns = now()
        self._step = _Step()
        self._look()
        self._step = _Step()

    def enter(self, name: str) -> None:
        """A phase begins."""
        if self._looking and name in _PHASES and name != self._step.phase:
            self._look()
            self._step.phase = name

    def cut(self) -> StepMemory | None:
        """The step is over, its trailing work included.

        Returns:
            Its peaks; None where it was not looked at.
        """
        looked = self._looking
        if looked:
            self._look()
            self._rest_until_ns = self._began_ns + _REST * self._step.spent_ns
        step, self._step = self._step, _Step()
        self._began_ns = self._now()
        self._looking = self._began_ns >= self._rest_until_ns
        if self._looking and not looked:
            self._look()  # what was allocated until now belongs to a step that was not looked at
            self._step = _Step()
        return StepMemory(step.allocated, step.reserved, step.phases, step.retries) if looked else None

    def _look(self) -> None:
        began = self._now()
        step, books = self._step, self._read()
        allocated, reserved = int(books["allocated_bytes"]["all"]["peak"]), int(books["reserved_bytes"]["all"]["peak"])
        step.retries = int(books["num_alloc_retries"])
        step.allocated, step.reserved = max(step.allocated, allocated), max(step.reserved, reserved)
        if step.phase is not None:
            step.phases[step.phase] = max(step.phases.get(step.phase, 0), allocated)
        self._keep(allocated, reserved)
        self._reset()
        step.spent_ns += self._now() - began
