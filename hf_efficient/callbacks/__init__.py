"""Thin TrainerCallbacks: an event in, a measurement or a check out; one concern per file."""

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
