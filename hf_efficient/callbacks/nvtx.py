"""NVTX ranges in any Trainer."""

from __future__ import annotations

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.nvtx import NvtxRanges

__all__ = ["NvtxCallback"]


class NvtxCallback(InstrumentCallback):
    """``Trainer(callbacks=[NvtxCallback()])`` names each optimizer step for Nsight.

    Beside ``AccountCallback``, or in an ``EfficientTrainer``, the phases of each step are named as well.
    """

    def __init__(self) -> None:
        """Nothing is marked before training begins."""
        super().__init__(NvtxRanges())
