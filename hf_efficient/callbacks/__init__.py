"""Thin TrainerCallbacks: an event in, a measurement or a check out; one concern per file."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_efficient.callbacks.account import AccountCallback, StepRecorderCallback
    from hf_efficient.callbacks.checks import (
        FourBitGuard,
        GradientCheck,
        keep_four_bit_trainable,
        parameters_without_gradient,
    )
    from hf_efficient.callbacks.profilers import (
        CaptureCallback,
        HostMemoryCallback,
        InstrumentCallback,
        LineTimesCallback,
        MemoryHistoryCallback,
        NvtxCallback,
        PythonProfileCallback,
        SynchronisationsCallback,
        TorchTraceCallback,
    )
    from hf_efficient.callbacks.progress import FigureBar
    from hf_efficient.callbacks.stop import BudgetCallback

__all__ = [
    "AccountCallback",
    "BudgetCallback",
    "CaptureCallback",
    "FigureBar",
    "FourBitGuard",
    "GradientCheck",
    "HostMemoryCallback",
    "InstrumentCallback",
    "LineTimesCallback",
    "MemoryHistoryCallback",
    "NvtxCallback",
    "PythonProfileCallback",
    "StepRecorderCallback",
    "SynchronisationsCallback",
    "TorchTraceCallback",
    "keep_four_bit_trainable",
    "parameters_without_gradient",
]

_NAMES = {
    "account": "AccountCallback StepRecorderCallback",
    "checks": "FourBitGuard GradientCheck keep_four_bit_trainable parameters_without_gradient",
    "profilers": "CaptureCallback HostMemoryCallback InstrumentCallback LineTimesCallback MemoryHistoryCallback "
    "NvtxCallback PythonProfileCallback SynchronisationsCallback TorchTraceCallback",
    "progress": "FigureBar",
    "stop": "BudgetCallback",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
