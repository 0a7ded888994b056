"""For Nsight Systems and Nsight Compute: NVTX ranges of steps and phases, and which steps to capture."""

from typing import Any

import torch

from hf_efficient.profilers.instrument import NO_CUDA, Instrument, Place, WindowedInstrument
from hf_efficient.recording.events import mark_phases


class NvtxRanges(Instrument):
    """A range ``step 6`` per optimizer step, of the process; inside it those of its phases, where they are recorded."""

    name = "nvtx"

    def __init__(self, marker: Any = None) -> None:
        super().__init__()
        self._given = marker
        self._marker: Any = None
        self._open: Any = None

    def start(self, place: Place) -> None:
        self._marker = self._given or (torch.cuda.nvtx if torch.cuda.is_available() else None)
        if self._marker is None:
            self.notes.append(NO_CUDA)
        mark_phases(self._marker)

    def step_begins(self, step: int) -> None:
        if self._marker is not None:
            self.step_ends(step)
            self._open = self._marker.range_start(f"step {step}")

    def step_ends(self, step: int) -> None:
        if self._open is not None:
            self._marker.range_end(self._open)
            self._open = None

    def stop(self) -> None:
        self.step_ends(0)
        mark_phases(None)


class Capture(WindowedInstrument):
    """``cudaProfilerStart`` before the first of the steps, ``cudaProfilerStop`` after the last."""

    name = "capture"

    def __init__(self, after_step: int = 5, steps: int = 3, profiler: Any = None) -> None:
        super().__init__(after_step, steps)
        self._given = profiler
        self._profiler: Any = None

    def start(self, place: Place) -> None:
        self._profiler = self._given or (torch.cuda.profiler if torch.cuda.is_available() else None)
        if self._profiler is None:
            self.notes.append(NO_CUDA)
        else:
            super().start(place)

    def begin(self, place: Place) -> None:
        self._profiler.start()

    def finish(self, place: Place) -> None:
        self._profiler.stop()
