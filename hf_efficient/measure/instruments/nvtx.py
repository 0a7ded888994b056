"""NVTX ranges of steps and phases, for Nsight Systems and Nsight Compute."""

from __future__ import annotations

from typing import Any

import torch

from hf_efficient.measure.instruments.instrument import Instrument, Place
from hf_efficient.measure.phase_ranges import mark_phases

__all__ = ["NvtxRanges"]

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
