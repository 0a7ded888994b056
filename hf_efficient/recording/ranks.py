"""Where a rank's own work ends and its wait for the others begins.

    forward   DDP broadcasts rank 0's buffers, then calls the inner module; a hook before each measures the wait.
    backward  the loss's own hook queues a final callback before DDP's, which waits for all ranks.
    elsewhere collectives that Python calls: gathers of figures, barriers, a backend's own exchange.

DeepSpeed's engine steps inside accelerate's backward: its step is timed by itself too.

No collective, no tensor and no order of work changes.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hf_efficient.recording.events import EventLog

_COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "scatter",
)  # fmt: skip
"""Of ``torch.distributed``, whose callers (transformers, accelerate, DeepSpeed) look them up at each call."""
_WATCHED = "_watched_by_hf_efficient"


class RankMarks:
    """Waits in the forward and the backward of one trainer of several ranks; under DDP marked on the device too."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._wait: int | None = None
        self._is_on_device = False
        self._watched: nn.Module | None = None
        self._ddp: DistributedDataParallel | None = None
        self._hooks: list[Any] = []

    def watch(self, model: nn.Module) -> None:
        if model is self._watched:
            return
        self.remove()
        self._watched = model
        inside = getattr(model, "_orig_mod", model)  # of a compiled one
        self._ddp = inside if isinstance(inside, DistributedDataParallel) else None
        if self._ddp is model and model.broadcast_buffers and model.modules_buffers:  # a compiled one keeps its graph
            self._hooks = [
                model.register_forward_pre_hook(lambda *_: self._begin_wait("forward")),
                model.module.register_forward_pre_hook(lambda *_: self.end_wait("forward")),
            ]

    def exchange(self) -> dict[str, Any]:
        """DDP's own log of the exchange of gradients: means over its first ten steps and each hundredth, or empty."""
        log: dict[str, Any] = {}
        if self._ddp is not None:
            with suppress(RuntimeError):  # no backward has ended
                log = self._ddp._get_ddp_logging_data()
        seconds = log.get("avg_backward_comm_time", 0) / 1e9
        covered = log.get("avg_backward_compute_comm_overlap_time", 0) / 1e9
        return {"seconds": seconds, "covered_seconds": min(max(covered, 0.0), seconds)} if seconds > 0 else {}

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._watched, self._ddp = [], None, None

    @contextmanager
    def backward(self, loss: Any) -> Iterator[None]:
        """The backward of this loss, whatever runs it; anything but a tensor that requires gradients is left alone."""
        hook = None
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            hook = loss.register_hook(self._backward_starts)
        try:
            yield
        finally:
            self.end_wait()
            if hook is not None:
                hook.remove()

    def end_wait(self, then: str | None = None) -> None:
        """The wait is over, if there was one; on the device ``then`` continues."""
        token, self._wait = self._wait, None
        on_device = self._is_on_device
        self._log.leave(token, "communication" if on_device else None, then if on_device else None)

    def _begin_wait(self, instead_of: str | None) -> None:
        if not self._wait:
            self._is_on_device = instead_of is not None
            self._wait = self._log.enter("communication", instead_of=instead_of)

    def _backward_starts(self, _: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._backward_computed)

    def _backward_computed(self) -> None:
        self._begin_wait(None if self._ddp is None else "backward")


class CollectiveWatch:
    """Opens a phase while the thread that trains is in a collective that Python calls. Asynchronous collectives are not
    waited for here, DDP's start in C++ unseen, and a GPU's return when queued."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._inside = False
        self._replaced: dict[str, Any] = {}

    def install(self) -> None:
        module = sys.modules.get("torch.distributed")
        self._owner = threading.get_ident()
        if module is None or self._replaced:
            return
        for name in _COLLECTIVES:
            if hasattr(module, name):
                self._replaced[name] = self._timed(getattr(module, name))
                setattr(module, name, self._replaced[name])

    def remove(self) -> None:
        """Put back what was there, but for what somebody else has replaced since."""
        module = sys.modules.get("torch.distributed")
        for name, timed in self._replaced.items():
            current: Any = getattr(module, name, None)
            if current is timed:
                setattr(module, name, timed.__wrapped__)
        self._replaced = {}

    def _timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside or threading.get_ident() != self._owner:
                return collective(*args, **kwargs)
            self._inside = True
            try:
                with self._log.phase("communication"):
                    return collective(*args, **kwargs)
            finally:
                self._inside = False

        return timed


def watch_engine_steps(accelerator: Any, log: EventLog, end_wait: Callable[[], None]) -> None:
    """From here on ``engine.step`` is the phase ``optimizer``, its exchanges communication; once per engine."""
    engine = getattr(getattr(accelerator, "deepspeed_engine_wrapped", None), "engine", None)
    if engine is None or getattr(engine.step, _WATCHED, False):
        return
    step = engine.step

    @functools.wraps(step)
    def watched(*args: Any, **kwargs: Any) -> Any:
        end_wait()
        token = log.enter("optimizer", instead_of="backward")
        try:
            return step(*args, **kwargs)
        finally:
            log.leave(token, "optimizer")

    setattr(watched, _WATCHED, True)
    engine.step = watched
