"""Thin TrainerCallbacks: an event in, a measurement or a check out; one concern per file."""

from hf_efficient.callbacks.account import AccountCallback
from hf_efficient.callbacks.budget import BudgetCallback
from hf_efficient.callbacks.capture import CaptureCallback
from hf_efficient.callbacks.figure_bar import FigureBar
from hf_efficient.callbacks.four_bit_guard import FourBitGuard, keep_four_bit_trainable
from hf_efficient.callbacks.gradient_check import GradientCheck, parameters_without_gradient
from hf_efficient.callbacks.host_memory import HostMemoryCallback
from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.callbacks.line_times import LineTimesCallback
from hf_efficient.callbacks.memory_history import MemoryHistoryCallback
from hf_efficient.callbacks.nvtx import NvtxCallback
from hf_efficient.callbacks.python_profile import PythonProfileCallback
from hf_efficient.callbacks.step_recorder import StepRecorderCallback
from hf_efficient.callbacks.synchronisations import SynchronisationsCallback
from hf_efficient.callbacks.torch_trace import TorchTraceCallback

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
