"""`datasets` draws a progress bar for every pass over the rows: too many for data that take seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import datasets

__all__ = ["QUIET_UP_TO", "progress_bars"]

QUIET_UP_TO = 20_000
"""Rows; with more than that the bars are shown."""


@contextmanager
def progress_bars(rows: int) -> Iterator[None]:
    """Within, the bars of `datasets` are off for at most ``QUIET_UP_TO`` rows; afterwards as they were."""
    silenced = rows <= QUIET_UP_TO and not datasets.are_progress_bars_disabled()
    if silenced:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if silenced:
            datasets.enable_progress_bars()
