"""The steps that Nsight captures, in any Trainer."""

from __future__ import annotations

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.capture import Capture

__all__ = ["CaptureCallback"]


class CaptureCallback(InstrumentCallback):
    """``Trainer(callbacks=[CaptureCallback(after_step=5, steps=3)])``, for ``nsys --capture-range=cudaProfilerApi``."""

    def __init__(self, after_step: int = 5, steps: int = 3) -> None:
        """Nothing is captured before training begins.

        Raises:
            ValueError: a count is too small.
        """
        super().__init__(Capture(after_step, steps))
