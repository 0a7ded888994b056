"""A request that a run ends after a step, asked for by a signal or a file; workers that such a signal leaves alone."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_PATIENCE_SECONDS = 30.0
"""That a step is given to end, and its checkpoint to be written: a cluster sends all its signals sooner."""
_SAME_KEY_SECONDS = 1.0
"""A Ctrl-C that comes later is another one: a terminal and a launcher may both hand over the first."""

STOP_FILE = "stop"  # in the output directory; whoever makes it asks for the end
_LOOK_SECONDS = 1.0


class EndedBySignal(BaseException):
    """A signal ended the run, and does so where it is; ``args`` holds the signal's number."""

    def __str__(self) -> str:
        return signal.Signals(self.args[0]).name


class EvaluationCut(EndedBySignal):
    """An evaluation ended in its middle: what it would have said is lost, and the training before it is not."""


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
        self.number: int = signal.SIGTERM  # the signal that asked first
        self.words = "SIGTERM"
        self._first: float | None = None
        self._looked = 0.0

    def ask(self, now: float, number: int = signal.SIGTERM) -> bool:
        """Ask; returns whether there is still hope, for somebody who may have asked before: not at a second Ctrl-C."""
        self.asked = True
        if self._first is None:
            self._first, self.number, self.words = now, number, signal.Signals(number).name
        waited = now - self._first
        return waited < (_SAME_KEY_SECONDS if number == signal.SIGINT else _PATIENCE_SECONDS)

    def look(self, directory: Path) -> None:
        """Ask where there is a stop file, and take it away; looks once a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        try:
            (directory / STOP_FILE).unlink()
        except OSError:  # there is none
            return
        self.ask(now)
        self.words = f"the file {directory / STOP_FILE}"


def exit_code(number: int) -> int:
    """What a process ends with for a signal: 130 for Ctrl-C, else 143, by which a scheduler starts it again."""
    return 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


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
