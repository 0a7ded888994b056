"""Peaks of memory that can be read without waiting for a device.

Peaks of the device's memory per step and phase, from the allocator's books on the host.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_efficient.records.steps import StepMemory


def peak_rss_bytes() -> int | None:
    """The largest resident memory of this process so far; None where the system does not tell.

    From ``VmHWM`` on Linux: ``getrusage`` there may still tell the peak of the process that started this one.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def device_memory(index: int | None) -> dict[str, int]:
    """What a CUDA device holds now, from the allocator's own books on the host; may be asked by any thread.

    Empty without a device, or where the process has not started CUDA.
    """
    torch = sys.modules.get("torch")
    if index is None or torch is None or not torch.cuda.is_initialized():
        return {}
    try:
        books = torch.cuda.memory.memory_stats_as_nested_dict(index)
    except RuntimeError:  # somebody else's allocator, which keeps no books
        return {}
    return {
        "device_allocated_bytes": int(books["allocated_bytes"]["all"]["current"]),
        "device_reserved_bytes": int(books["reserved_bytes"]["all"]["current"]),
    }


def device_peaks() -> dict[str, int]:
    """Peaks of the current CUDA device since the process started, from the allocator's own books on the host.

    Neither imports torch nor starts CUDA: empty where the process has not done so. Torch's own peaks count from where
    they were last set back; what ``keep_device_peaks`` was told before is taken in.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    try:
        stats = torch.cuda.memory.memory_stats_as_nested_dict()
    except RuntimeError:  # somebody else's allocator, which keeps no books
        return {}
    kept = _kept.get(int(torch.cuda.current_device()), (0, 0))
    return {
        "device_peak_allocated_bytes": max(int(stats["allocated_bytes"]["all"]["peak"]), kept[0]),
        "device_peak_reserved_bytes": max(int(stats["reserved_bytes"]["all"]["peak"]), kept[1]),
        "device_allocation_retries": int(stats["num_alloc_retries"]),
    }


def keep_device_peaks(device: int, allocated_bytes: int, reserved_bytes: int) -> None:
    """Remember the peaks of a CUDA device that are about to be set back, for ``device_peaks``.

    Args:
        device: its index.
        allocated_bytes, reserved_bytes: as torch tells them now.
    """
    allocated, reserved = _kept.get(device, (0, 0))
    _kept[device] = (max(allocated, allocated_bytes), max(reserved, reserved_bytes))


_kept: dict[int, tuple[int, int]] = {}


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
