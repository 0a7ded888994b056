"""Python's search for cycles of garbage, put off."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No automatic search in the block; what it would have found is found afterwards.

    A rehearsal makes a hundred thousand objects that stay, at which the search would look again and again: a third of
    its time. When it comes in a run nobody knows; a training step leaves no tensors in cycles that it could free.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
