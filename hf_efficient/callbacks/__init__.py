"""Thin TrainerCallbacks: an event in, a measurement or a check out; one concern per file."""

import importlib
from typing import Any

_NAMES = {
    "account": ["AccountCallback", "StepRecorderCallback"],
    "checks": ["FourBitGuard", "GradientCheck", "keep_four_bit_trainable", "parameters_without_gradient"],
    "profilers": [
        *("CaptureCallback", "HostMemoryCallback", "InstrumentCallback", "LineTimesCallback", "MemoryHistoryCallback"),
        *("NvtxCallback", "PythonProfileCallback", "SynchronisationsCallback", "TorchTraceCallback"),
    ],
    "progress": ["FigureBar"],
    "stop": ["BudgetCallback"],
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
