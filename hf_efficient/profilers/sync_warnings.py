"""Where the host waits for a CUDA device, as CUDA's own debug mode tells it.

It warns at what waits inside torch (copies to the host, ``.item()``, ``nonzero`` and their like). It does not see
explicit calls, so ``torch.cuda.synchronize`` and the ``synchronize`` of streams and events are counted beside it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

_WARNS = "called a synchronizing CUDA operation"


@contextlib.contextmanager
def counted_synchronisations() -> Iterator[Counter[str]]:
    """Yields a counter that holds, when the block has ended, ``file:line`` of whoever waited and how often."""
    found: Counter[str] = Counter()
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as told, contextlib.ExitStack() as undo:
        warnings.simplefilter("always")
        owners: tuple[Any, ...] = (torch.cuda, torch.cuda.Stream, torch.cuda.Event)
        for owner in owners:
            undo.callback(setattr, owner, "synchronize", owner.synchronize)
            owner.synchronize = _counting(owner.synchronize, found)
        undo.callback(torch.cuda.set_sync_debug_mode, before)
        torch.cuda.set_sync_debug_mode("warn")
        yield found
    found.update(f"{one.filename}:{one.lineno}" for one in told if _WARNS in str(one.message))


def _counting(synchronize: Callable[..., Any], found: Counter[str]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        found[f"{caller.f_code.co_filename}:{caller.f_lineno}"] += 1
        return synchronize(*args, **kwargs)

    return counting
