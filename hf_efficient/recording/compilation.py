"""torch.compile: its time, by dynamo's own callbacks, and what it did, by dynamo's own counters."""

import contextlib
import sys
import threading
from types import ModuleType
from typing import Any

from hf_efficient.recording.events import EventLog

_MOST_REASONS = 10


class CompilationWatch:
    """Opens a phase for as long as dynamo compiles; without dynamo nothing is imported. Autograd's thread may compile a
    backward when it first runs (reported since torch 2.8); other threads' compilations are left out."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._callbacks: ModuleType | None = None
        self._open: tuple[int, int | None] | None = None  # thread, and token of the phase
        self._depth = 0

    def install(self) -> None:
        self._callbacks = sys.modules.get("torch._dynamo.callback")
        self._owner = threading.get_ident()
        if self._callbacks is not None:
            self._callbacks.callback_handler.register_start_callback(self._starts)
            self._callbacks.callback_handler.register_end_callback(self._ends)

    def remove(self) -> None:
        if self._callbacks is not None:
            with contextlib.suppress(ValueError):  # torch._dynamo.reset() forgets all callbacks
                self._callbacks.callback_handler.remove_start_callback(self._starts)
                self._callbacks.callback_handler.remove_end_callback(self._ends)
            self._callbacks = None

    def _starts(self, *_: object) -> None:
        thread = threading.get_ident()
        if self._open is not None:
            self._depth += self._open[0] == thread
        elif thread == self._owner or self._log.marked in ("backward", "forward_backward"):
            self._open, self._depth = (thread, self._log.enter("compilation")), 1

    def _ends(self, *_: object) -> None:
        if self._open is None or self._open[0] != threading.get_ident():
            return
        self._depth -= 1
        if not self._depth:
            token, self._open = self._open[1], None
            self._log.leave(token, "compilation")


def compile_counts() -> dict[str, Any] | None:
    """Counts of frames, recompilations, graphs and their breaks with reasons; None where nothing was compiled."""
    frames, utilities = sys.modules.get("torch._dynamo.convert_frame"), sys.modules.get("torch._dynamo.utils")
    compiled = getattr(frames, "FRAME_COMPILE_COUNTER", {})
    if utilities is None or not compiled:
        return None
    breaks = utilities.counters["graph_break"]
    reasons = sorted(breaks.items(), key=lambda one: -one[1])[:_MOST_REASONS]
    return {
        "frames": len(compiled),
        "recompiles": sum(times - 1 for times in compiled.values()),
        "graphs": int(utilities.counters["stats"]["unique_graphs"]),
        "graph_breaks": int(sum(breaks.values())),
        "break_reasons": {str(reason).strip().partition("\n")[0][:200]: times for reason, times in reasons},
    }
