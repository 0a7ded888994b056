"""Named functions line by line in any Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.after_steps import AFTER_STEPS
from hf_efficient.measure.instruments.functions import named_functions
from hf_efficient.measure.instruments.line_times import LineTimes
from hf_efficient.measure.instruments.packages import require

__all__ = ["LineTimesCallback"]


class LineTimesCallback(InstrumentCallback):
    """``Trainer(callbacks=[LineTimesCallback(["my_project.collator:Collator.__call__"])])``; needs line_profiler."""

    def __init__(
        self, functions: Sequence[str], directory: str | Path | None = None, *, after_step: int = AFTER_STEPS
    ) -> None:
        """Nothing is timed before training begins.

        Args:
            functions: as ``package.module:function`` or ``package.module:Class.method``.
            directory: where the files go; default: ``OUTPUT_DIR/efficiency/profile``.
            after_step: optimizer steps that go by before; the cost is told by comparison with them.

        Raises:
            SetupError: line_profiler is not installed, or there is no such function.
            ValueError: a negative step.
        """
        require("line_profiler")
        super().__init__(LineTimes(named_functions("lines", functions), after_step), directory)
