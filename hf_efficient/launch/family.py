"""A launched command and all that it started, as one: afterwards none of them is left."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import psutil

__all__ = ["ended"]

_TERM_SECONDS = 10.0


@contextlib.contextmanager
def ended(launcher: subprocess.Popen[bytes]) -> Iterator[None]:
    """Afterwards it and all that it started are gone: told to end, and after ten seconds made to."""
    try:
        yield
    finally:
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(launcher.pid)
            family = [process, *process.children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.terminate()
        deaf = psutil.wait_procs(family, timeout=_TERM_SECONDS)[1]
        for one in deaf:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(deaf, timeout=_TERM_SECONDS)  # their folder may go next
        launcher.wait()
