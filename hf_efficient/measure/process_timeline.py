"""The one timeline of this process, and the end of it."""

from __future__ import annotations

import atexit
import os

from hf_efficient.measure.timeline import Timeline

__all__ = ["process_timeline"]

_timeline: Timeline | None = None


def process_timeline() -> Timeline:
    """The timeline of this process; a process that was forked off starts its own."""
    global _timeline
    if _timeline is None:
        _timeline = Timeline()
    return _timeline


def _forget() -> None:
    global _timeline
    _timeline = None


def _at_exit() -> None:
    if _timeline is not None:
        _timeline.exits()


atexit.register(_at_exit)  # early: what was registered later runs before, and is counted
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
