"""The instruments that a recipe asks for under ``efficiency.profile``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hf_efficient.callbacks.capture import CaptureCallback
from hf_efficient.callbacks.host_memory import HostMemoryCallback
from hf_efficient.callbacks.instrument import InstrumentCallback
from hf_efficient.callbacks.line_times import LineTimesCallback
from hf_efficient.callbacks.memory_history import MemoryHistoryCallback
from hf_efficient.callbacks.nvtx import NvtxCallback
from hf_efficient.callbacks.python_profile import PythonProfileCallback
from hf_efficient.callbacks.synchronisations import SynchronisationsCallback
from hf_efficient.callbacks.torch_trace import TorchTraceCallback
from hf_efficient.measure.instruments.functions import named_functions
from hf_efficient.recipe.profile_section import ProfileSection

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["check_functions", "closed_instruments", "instrument_callbacks"]


def instrument_callbacks(profile: ProfileSection) -> list[InstrumentCallback]:
    """A callback per instrument that is switched on."""
    found: list[InstrumentCallback] = []
    if profile.trace is not None:
        found.append(TorchTraceCallback(**profile.trace.model_dump()))
    if profile.memory is not None:
        found.append(MemoryHistoryCallback(**profile.memory.model_dump()))
    if profile.python is not None:
        found.append(PythonProfileCallback(**profile.python.model_dump()))
    if profile.lines:
        found.append(LineTimesCallback(profile.lines))
    if profile.host_memory:
        found.append(HostMemoryCallback(profile.host_memory))
    if profile.nvtx:
        found.append(NvtxCallback())
    if profile.capture is not None:
        found.append(CaptureCallback(**profile.capture.model_dump()))
    if profile.synchronisations is not None:
        found.append(SynchronisationsCallback(**profile.synchronisations.model_dump()))
    return found


def check_functions(profile: ProfileSection) -> None:
    """The functions that it names are there: asked before data and model are read.

    Raises:
        SetupError: one is not.
    """
    named_functions("efficiency.profile.lines", profile.lines)
    named_functions("efficiency.profile.host_memory", profile.host_memory)


@contextmanager
def closed_instruments(trainer: Trainer) -> Iterator[None]:
    """Afterwards no instrument runs: an exception that ends the training is not told to callbacks."""
    try:
        yield
    finally:
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, InstrumentCallback):
                callback.close()
