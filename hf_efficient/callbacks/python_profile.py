"""Python's functions in any Trainer."""

from __future__ import annotations

from pathlib import Path

from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.measure.instruments.after_steps import AFTER_STEPS
from hf_efficient.measure.instruments.packages import require
from hf_efficient.measure.instruments.python_profile import PythonProfile

__all__ = ["PythonProfileCallback"]


class PythonProfileCallback(InstrumentCallback):
    """``Trainer(callbacks=[PythonProfileCallback("pyinstrument")])``: the dearest functions, of loader workers too."""

    def __init__(
        self,
        tool: str = "cprofile",
        directory: str | Path | None = None,
        *,
        after_step: int = AFTER_STEPS,
        workers: bool = True,
    ) -> None:
        """Nothing is profiled before training begins.

        Args:
            tool: ``cprofile``, or ``pyinstrument`` of the extra ``profile``.
            directory: where the files go; default: ``OUTPUT_DIR/efficiency/profile``.
            after_step: optimizer steps that go by before; the cost is told by comparison with them.
            workers: profile those of the data loader too, from their start.

        Raises:
            SetupError: pyinstrument is not installed.
            ValueError: there is no such tool, or a negative step.
        """
        if tool == "pyinstrument":
            require("pyinstrument")
        super().__init__(PythonProfile(tool, after_step, workers), directory)
