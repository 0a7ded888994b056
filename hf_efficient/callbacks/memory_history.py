"""The CUDA allocator's history in any Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.memory_history import MemoryHistory

__all__ = ["MemoryHistoryCallback"]


class MemoryHistoryCallback(InstrumentCallback):
    """``Trainer(callbacks=[MemoryHistoryCallback(at_steps=[10])])``; alone, it writes when memory runs out.

    On a machine without CUDA it says so, and does nothing.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        at_steps: Sequence[int] = (),
        at_end: bool = False,
        on_out_of_memory: bool = True,
        max_entries: int = 100_000,
        modules: bool = True,
    ) -> None:
        """Nothing is remembered before training begins.

        Args:
            directory: where the files go; default: ``OUTPUT_DIR/efficiency/profile``.
            at_steps: optimizer steps after which a snapshot is written.
            at_end: write one after the last step.
            on_out_of_memory: write one when an allocation fails.
            max_entries: allocations and releases that are remembered, the latest.
            modules: name the module that each allocation is for.
        """
        super().__init__(MemoryHistory(at_steps, at_end, on_out_of_memory, max_entries, modules), directory)
