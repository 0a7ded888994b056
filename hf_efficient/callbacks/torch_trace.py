"""The torch profiler in any Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.torch_trace import TorchTrace, TraceSchedule

__all__ = ["TorchTraceCallback"]


class TorchTraceCallback(InstrumentCallback):
    """``Trainer(callbacks=[TorchTraceCallback(wait=5, active=3)])`` traces three steps.

    Each rank leaves a trace per cycle, which https://ui.perfetto.dev and TensorBoard show and ``hf-efficient diagnose``
    reads, and ``operators.rank0.json``, the dearest operators.
    """

    def __init__(self, directory: str | Path | None = None, **schedule: Any) -> None:
        """Nothing is traced before training begins.

        Args:
            directory: where the files go; default: ``OUTPUT_DIR/efficiency/profile``.
            schedule: see ``TraceSchedule``: wait, warmup, active, repeat, shapes, stacks, memory, flops.

        Raises:
            ValueError: a count is too small.
        """
        super().__init__(TorchTrace(TraceSchedule(**schedule)), directory)
