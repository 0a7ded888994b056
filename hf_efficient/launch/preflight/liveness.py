"""Whether anything goes on in the processes of a proof: another stage, or a file that is read or written."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

from hf_efficient.launch.preflight.notes import RankNotes

__all__ = ["Liveness"]

_LEAST_BYTES = 1 << 20
"""Less is a log."""
_LOOK_SECONDS = 1.0


class Liveness:
    """A model that is downloaded or read for an hour is no hang; processes that wait for each other move no bytes."""

    def __init__(self, launcher: int) -> None:
        """It has just begun.

        Args:
            launcher: process that started all others.
        """
        self._launcher = launcher
        self._since = self._looked = time.monotonic()
        self._stages: list[str] = []
        self._bytes = 0

    def still_for(self, notes: Sequence[RankNotes]) -> float:
        """Seconds in which nothing has gone on; reading data, which may compute alone, is never still.

        Args:
            notes: of the processes, as they are now.
        """
        now = time.monotonic()
        stages: list[str] = [one.stage for one in notes]
        if stages != self._stages or "data" in stages:
            self._stages, self._since = stages, now
        elif now - self._looked > _LOOK_SECONDS:
            self._looked = now
            moved = _bytes_of(self._launcher)
            if abs(moved - self._bytes) >= _LEAST_BYTES:
                self._bytes, self._since = moved, now
        return now - self._since


def _bytes_of(launcher: int) -> int:
    """That it and all that it started have read and written, as far as the system tells (Linux, Windows)."""
    total = 0
    try:
        process = psutil.Process(launcher)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for one in family:
        try:
            told = one.io_counters()
        except (psutil.Error, AttributeError):
            continue
        total += getattr(told, "read_chars", told.read_bytes) + getattr(told, "write_chars", told.write_bytes)
    return total
