"""A request that a run ends after a step: asked for by a signal, agreed on by its ranks, and heard by its training."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

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


logger = logging.getLogger(__name__)

_OWN_SECONDS = 0.2
_OTHERS_SECONDS = 1.0
_ANSWER_SECONDS = 0.02
_ANSWERS_SECONDS = 15.0
"""That rank 0 waits for the answers of all together, and they for its proposal: is one later, none of them stops."""
_VERDICT_SECONDS = 60.0
"""That the others wait for rank 0: so much longer that nobody stops alone, or goes on alone."""
_LOOKS = 5
"""That fail in a row before a rank gives up to look."""
_MISSING = "missing"
"""The verdict where a rank did not answer."""


class StopStore(Protocol):
    """What is needed of ``torch.distributed.TCPStore``."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class StopAgreement:
    """After which step all ranks stop: they save together, but no two are at the same place when a signal comes.

    Once a second a thread of each rank looks into the store whether any rank was asked to stop. If so, rank 0 proposes
    a step ahead. Each rank answers whether it is ahead for it too, and waits at the end of that step. If all agree
    they stop there; else rank 0 proposes a later step. Rank 0 gives the answers a deadline. ``failed``: this rank was
    asked to stop, and a rank or the store is gone.
    """

    def __init__(
        self,
        asked: Callable[[], bool],
        rank: int = 0,
        world_size: int = 1,
        store: StopStore | None = None,
        prefix: str = "stop",
    ) -> None:
        self._asked, self._rank, self._world_size, self._store = asked, rank, world_size, store
        self._prefix = prefix
        self._changed = threading.Condition()
        self._done = 0
        self._hold: int | None = None
        self._stop: int | None = None
        self._closed = threading.Event()
        self._deaf = False
        self.failed = False

    def begin(self, step: int) -> None:
        self._done = step
        if self._store is not None:
            threading.Thread(target=self._listen, args=(self._store,), name="stop", daemon=True).start()

    def after(self, step: int) -> bool:
        """Whether the training stops now, on all ranks; called by the one that trains, after every step."""
        if self._store is None:
            return self._asked()
        with self._changed:
            self._done = step
            self._changed.wait_for(lambda: self._hold != step)  # the thread lets go, however it ends
            self.failed = self._deaf and self._asked()
            return self._stop == step

    def close(self) -> None:
        self._closed.set()

    def _listen(self, store: StopStore) -> None:
        try:
            if self._is_wanted(store):
                ahead = 1
                while not self._agrees(store, ahead):
                    ahead *= 2
        except (RuntimeError, TimeoutError) as error:  # the store raises its own kinds of RuntimeError
            if not self._closed.is_set():
                logger.warning("The processes cannot agree where to stop; SIGTERM ends this one at once: %s", error)
                self._deaf = True
        finally:
            with self._changed:
                self._hold = None
                self._changed.notify_all()

    def _is_wanted(self, store: StopStore) -> bool:
        looked, failed = 0.0, 0
        while not self._closed.wait(_OWN_SECONDS):
            if self._asked():
                store.set(self._key("asked"), "yes")
                return True
            if time.monotonic() - looked > _OTHERS_SECONDS:
                looked = time.monotonic()
                try:
                    if store.check([self._key("asked")]):
                        return True
                    failed = 0
                except (RuntimeError, TimeoutError):
                    failed += 1
                    if failed == _LOOKS:
                        raise
        return False

    def _agrees(self, store: StopStore, ahead: int) -> bool:
        if self._rank == 0:
            store.set(self._key(f"{ahead}/step"), str(self._done + ahead))
        step = int(self._answer(store, f"{ahead}/step", time.monotonic() + _ANSWERS_SECONDS))
        with self._changed:
            lies_ahead = self._done < step
            if lies_ahead:
                self._hold = step
        store.set(self._key(f"{ahead}/{self._rank}"), "yes" if lies_ahead else "no")
        if self._rank == 0:
            store.set(self._key(f"{ahead}/verdict"), self._verdict(store, ahead))
        verdict = self._answer(store, f"{ahead}/verdict", time.monotonic() + _VERDICT_SECONDS)
        if verdict == _MISSING:
            raise TimeoutError(f"a rank did not answer within {_ANSWERS_SECONDS:.0f} s")
        with self._changed:
            self._stop, self._hold = step if verdict == "yes" else None, None
            self._changed.notify_all()
        return verdict == "yes"

    def _verdict(self, store: StopStore, ahead: int) -> str:
        until = time.monotonic() + _ANSWERS_SECONDS
        try:
            answers = [self._answer(store, f"{ahead}/{rank}", until) for rank in range(self._world_size)]
        except TimeoutError:
            return _MISSING
        return "yes" if all(answer == "yes" for answer in answers) else "no"

    def _answer(self, store: StopStore, key: str, until: float) -> str:
        """The value of this key, polled so that waiting holds up no connection.

        Raises:
            TimeoutError: it is not there by ``until`` (``time.monotonic``).
        """
        while not store.check([self._key(key)]):
            if time.monotonic() > until or self._closed.is_set():
                raise TimeoutError(f"no answer ({key})")
            time.sleep(_ANSWER_SECONDS)
        return store.get(self._key(key)).decode()

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


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
