"""What is told of the device while a training loop runs: its time per phase, and its memory."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch

from hf_efficient.recording.device_clock import DeviceClock, DeviceTimes, EventPool
from hf_efficient.recording.memory import PhasePeaks, keep_device_peaks
from hf_efficient.records.steps import StepMemory

logger = logging.getLogger(__name__)


class DeviceWatch:
    """Is told the phases of the steps. A fault is logged once and ends it; no method raises."""

    def __init__(self, clock: DeviceClock, peaks: PhasePeaks | None) -> None:
        """Watch with these.

        Args:
            clock: of the device's time.
            peaks: of its memory; None: they are left alone.
        """
        self._clock, self._peaks = clock, peaks
        self._off = False

    def enter(self, name: str) -> None:
        """A phase begins."""
        self._guarded(lambda: self._enter(name))

    def leave(self, name: str) -> None:
        """A phase ends."""
        self._guarded(lambda: self._clock.leave(name))

    def cut(self) -> tuple[DeviceTimes | None, StepMemory | None]:
        """The step is over.

        Returns:
            Its events, to be read later, and its peaks.
        """
        found: list[tuple[DeviceTimes | None, StepMemory | None]] = []
        self._guarded(lambda: found.append((self._clock.cut(), None if self._peaks is None else self._peaks.cut())))
        return found[0] if found else (None, None)

    def _enter(self, name: str) -> None:
        if self._peaks is not None:
            self._peaks.enter(name)
        self._clock.enter(name)

    def _guarded(self, do: Callable[[], None]) -> None:
        if self._off:
            return
        try:
            do()
        except Exception:
            self._off = True
            logger.warning(
                "Time and memory of the device are no longer told, because of a fault; training goes on.", exc_info=True
            )


def watch_device(device: torch.device, *, memory: bool = True) -> DeviceWatch | None:
    """A watch of the device that trains; None where it is no CUDA device, or CUDA was not started.

    Args:
        device: that trains.
        memory: whether to read the allocator's peaks and set them back (see ``PhasePeaks``).
    """
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device() if device.index is None else device.index
    clock = DeviceClock(EventPool(lambda: torch.cuda.Event(enable_timing=True)))
    return DeviceWatch(clock, _peaks(index) if memory else None)


def _peaks(index: int) -> PhasePeaks | None:
    try:
        return PhasePeaks(
            functools.partial(torch.cuda.memory.memory_stats_as_nested_dict, index),
            functools.partial(torch.cuda.reset_peak_memory_stats, index),
            functools.partial(keep_device_peaks, index),
        )
    except RuntimeError as error:  # somebody else's allocator, which keeps no books
        logger.info("The device's memory is not told by phase: %s", error)
        return None
