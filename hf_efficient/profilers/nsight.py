"""NVTX ranges of steps and phases, for Nsight Systems and Nsight Compute.

Tells a CUDA profiler outside, Nsight for instance, which steps to capture.
"""

from __future__ import annotations

from typing import Any

import torch

from hf_efficient.profilers.instrument import Instrument, Place
from hf_efficient.recording.phases import mark_phases

NO_CUDA = "needs a CUDA device, and there is none"


class NvtxRanges(Instrument):
    """A range ``step 6`` per optimizer step, from its batches to its update; inside it those of its phases.

    The steps are ranges of the process, so that the kernels that autograd's own threads launch belong to them. The
    phases are marked where their times are recorded, by ``EfficientTrainer`` or ``AccountCallback``.
    """

    name = "nvtx"

    def __init__(self, marker: Any = None) -> None:
        """Nothing is marked before ``start``.

        Args:
            marker: has the functions of ``torch.cuda.nvtx``; default: that, where there is a CUDA device.
        """
        super().__init__()
        self._given = marker
        self._marker: Any = None
        self._open: Any = None

    def start(self, place: Place) -> None:
        """Loops that begin from here on mark their phases."""
        self._marker = self._given or (torch.cuda.nvtx if torch.cuda.is_available() else None)
        if self._marker is None:
            self.notes.append(NO_CUDA)
        mark_phases(self._marker)

    def step_begins(self, step: int) -> None:
        """Open the step's range."""
        if self._marker is not None:
            self._end_step()
            self._open = self._marker.range_start(f"step {step}")

    def step_ends(self, step: int) -> None:
        """Close it."""
        self._end_step()

    def stop(self) -> None:
        """No loop that begins later is marked."""
        self._end_step()
        mark_phases(None)

    def _end_step(self) -> None:
        if self._open is not None and self._marker is not None:
            self._marker.range_end(self._open)
            self._open = None


class Capture(Instrument):
    """``cudaProfilerStart`` before the first of the steps, ``cudaProfilerStop`` after the last."""

    name = "capture"

    def __init__(self, after_step: int = 5, steps: int = 3, profiler: Any = None) -> None:
        """Nothing is captured before ``start``.

        Args:
            after_step: optimizer steps that go by before, counted in this training.
            steps: that are captured.
            profiler: has ``start`` and ``stop``; default: ``torch.cuda.profiler``, where there is a CUDA device.

        Raises:
            ValueError: a count is too small.
        """
        super().__init__()
        if after_step < 0 or steps < 1:
            raise ValueError(f"after_step is {after_step}, steps is {steps}; write at least 0 and 1")
        self._first, self._count, self._given = after_step, steps, profiler
        self._profiler: Any = None
        self._done = 0

    def start(self, place: Place) -> None:
        """Capture at once, where no step is to go by."""
        self._done = 0
        self._profiler = self._given or (torch.cuda.profiler if torch.cuda.is_available() else None)
        if self._profiler is None:
            self.notes.append(NO_CUDA)
        self._switch()

    def step_ends(self, step: int) -> None:
        """Begin or end, where it is time."""
        self._done += 1
        self._switch()

    def stop(self) -> None:
        """Training ended inside the captured steps."""
        if self.active:
            self.active = False
            self._profiler.stop()

    def _switch(self) -> None:
        wanted = self._profiler is not None and self._first <= self._done < self._first + self._count
        if wanted and not self.active:
            self.active = True
            self._profiler.start()
        elif not wanted:
            self.stop()
