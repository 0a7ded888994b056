"""A request that a run ends after a step, asked for by a signal; workers that such a signal leaves alone."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

_PATIENCE_SECONDS = 30.0
"""That a step is given to end, and its checkpoint to be written: a cluster sends all its signals sooner."""


class EndedBySignal(BaseException):
    """A signal ended the run, and does so where it is; ``args`` holds the signal's number."""

    def __str__(self) -> str:
        return signal.Signals(self.args[0]).name


class RunStopped(BaseException):
    """The run ended as it was asked to: after a step, with a checkpoint of it."""

    def __init__(self, step: int, steps: int) -> None:
        super().__init__(step, steps)
        self.step, self.steps = step, steps

    def __str__(self) -> str:
        return f"after step {self.step} of {self.steps}; checkpoint-{self.step} is saved"


class StopRequest:
    """Of this process; ``heard``: a training will end after a step, else whoever asks has to end the process."""

    def __init__(self) -> None:
        self.asked = False
        self.heard = False
        self._first: float | None = None

    def ask(self, now: float) -> bool:
        """Ask; returns whether there is still hope, for somebody who may have asked before."""
        self.asked = True
        self._first = now if self._first is None else self._first
        return now - self._first < _PATIENCE_SECONDS


_request = StopRequest()


def stop_request() -> StopRequest:
    return _request


@dataclass(frozen=True)
class ShelteredStart:
    """A ``worker_init_fn`` after which a worker ends by its parent's SIGTERM alone; torch's own (2.13) end by any."""

    inner: Callable[[int], None] | None = None

    def __call__(self, worker: int) -> None:
        if self.inner is not None:
            self.inner(worker)
        if hasattr(signal, "sigwaitinfo"):  # not on macOS
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            threading.Thread(target=_ends_by_its_parent, args=(os.getppid(),), name="SIGTERM", daemon=True).start()


def _ends_by_its_parent(parent: int) -> None:
    """By anybody's signal once it has no parent any more."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent and os.getppid() == parent:
        pass
    os._exit(0)
