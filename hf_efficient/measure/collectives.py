"""The host's time in collectives that Python calls: gathers of figures, barriers, a backend's own exchange."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

__all__ = ["CollectiveWatch"]

_NAMES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
)
"""Of ``torch.distributed``, whose callers (transformers, accelerate, DeepSpeed) look them up at each call."""


class CollectiveWatch:
    """Opens a phase for as long as the thread that trains is in a collective.

    What it waits for there is the ranks that come later, and the exchange itself. A collective that is only started
    (``async_op=True``) is not waited for here; those of DDP's gradients start in C++ and are not seen either (see
    ``rank_marks.py``). On a GPU a collective returns when it is queued: its time is on the device.
    """

    def __init__(self, phase: Callable[[], AbstractContextManager[None]]) -> None:
        """Nothing is watched before ``install``.

        Args:
            phase: a context of the phase, which raises nothing.
        """
        self._phase = phase
        self._owner = threading.get_ident()
        self._inside = False
        self._replaced: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def install(self) -> None:
        """Watch from here on; called by the thread that trains. Does nothing without ``torch.distributed``."""
        module = sys.modules.get("torch.distributed")
        self._owner = threading.get_ident()
        if module is None or self._replaced:
            return
        for name in _NAMES:
            original = getattr(module, name, None)
            if original is not None:
                timed = self._timed(original)
                self._replaced[name] = (original, timed)
                setattr(module, name, timed)

    def remove(self) -> None:
        """Put back what was there, but for what somebody else has replaced since."""
        module = sys.modules.get("torch.distributed")
        for name, (original, timed) in self._replaced.items():
            if getattr(module, name, None) is timed:
                setattr(module, name, original)
        self._replaced = {}

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.get_ident() != self._owner:
                return collective(*args, **kwargs)
            self._inside = True
            try:
                with self._phase():
                    return collective(*args, **kwargs)
            finally:
                self._inside = False

        return timed
