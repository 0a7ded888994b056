"""Workers of a data loader that live as long as their training: a cluster sends SIGTERM to all processes of a job."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ShelteredStart"]


@dataclass(frozen=True)
class ShelteredStart:
    """A ``worker_init_fn`` around another one, after which SIGTERM ends the worker where its training process sends it.

    torch's own workers (2.13) end by any SIGTERM, and the training with them, which was to finish its step and save.

    Attributes:
        inner: the loader's own ``worker_init_fn``.
    """

    inner: Callable[[int], None] | None = None

    def __call__(self, worker: int) -> None:
        """In the worker, before its first batch."""
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
