"""How a run, or a call of ``train()``, ended."""

from __future__ import annotations

from typing import Literal, NamedTuple

from hf_efficient.measure.stop_request import RunStopped

__all__ = ["DONE", "Ending", "ending_of"]


class Ending(NamedTuple):
    """``done``; ``stopped``, as it was asked to, and where; or ``error`` with what ended it."""

    how: Literal["done", "stopped", "error"]
    error: str | None


DONE = Ending("done", None)


def ending_of(error: BaseException | None) -> Ending:
    """Kind and first line of the exception that ended it; None: none did."""
    if error is None:
        return DONE
    if isinstance(error, RunStopped):
        return Ending("stopped", str(error))
    lines = str(error).strip().splitlines()
    return Ending("error", f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__)
