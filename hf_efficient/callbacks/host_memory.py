"""The host's memory by lines of named functions in any Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.after_steps import AFTER_STEPS
from hf_efficient.measure.instruments.functions import named_functions
from hf_efficient.measure.instruments.host_memory import HostMemory
from hf_efficient.measure.instruments.packages import require

__all__ = ["HostMemoryCallback"]


class HostMemoryCallback(InstrumentCallback):
    """``Trainer(callbacks=[HostMemoryCallback(["my_project.data:load"])])``; needs memray."""

    def __init__(
        self, functions: Sequence[str], directory: str | Path | None = None, *, after_step: int = AFTER_STEPS
    ) -> None:
        """Nothing is watched before training begins.

        Args:
            functions: as ``package.module:function`` or ``package.module:Class.method``.
            directory: where the files go; default: ``OUTPUT_DIR/efficiency/profile``.
            after_step: optimizer steps that go by before; the cost is told by comparison with them.

        Raises:
            SetupError: memray is not installed, or there is no such function.
            ValueError: a negative step.
        """
        require("memray")
        super().__init__(HostMemory(named_functions("host_memory", functions), after_step), directory)
