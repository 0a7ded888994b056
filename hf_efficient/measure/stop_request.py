"""The wish that a run ends after a step: uttered by a signal, heard by its training."""

from __future__ import annotations

import signal

__all__ = ["EndedBySignal", "RunStopped", "StopRequest", "stop_request"]

_PATIENCE_SECONDS = 30.0
"""That a step is given to end, and its checkpoint to be written: a cluster sends all its signals sooner."""


class EndedBySignal(BaseException):
    """The run was told to end by a signal, and does so where it is; ``args`` holds the signal's number."""

    def __str__(self) -> str:
        return signal.Signals(self.args[0]).name


class RunStopped(BaseException):
    """The run ended as it was asked to: after a step, with a checkpoint of it."""

    def __init__(self, step: int, steps: int) -> None:
        """It can go on.

        Args:
            step: the last one done; its checkpoint is saved.
            steps: of the whole run.
        """
        super().__init__(step, steps)
        self.step, self.steps = step, steps

    def __str__(self) -> str:
        return f"after step {self.step} of {self.steps}; checkpoint-{self.step} is saved"


class StopRequest:
    """Of this process.

    Attributes:
        asked: whether the run is to end after a step. It stays asked for.
        heard: whether a training is going on that will do so; else whoever asks has to end the process himself.
    """

    def __init__(self) -> None:
        """Nobody has asked, nobody listens."""
        self.asked = False
        self.heard = False
        self._first: float | None = None

    def ask(self, now: float) -> bool:
        """Ask; returns whether there is still hope, for somebody who may have asked before.

        Args:
            now: a monotonic clock, in seconds.
        """
        self.asked = True
        self._first = now if self._first is None else self._first
        return now - self._first < _PATIENCE_SECONDS


_request = StopRequest()


def stop_request() -> StopRequest:
    """The one of this process."""
    return _request
