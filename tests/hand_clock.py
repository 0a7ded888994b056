"""A clock that is set by hand, and a timeline of a process by it."""

from __future__ import annotations

from hf_efficient.recording.clocks import ProcessStart
from hf_efficient.recording.timeline import Timeline

SECOND = 1_000_000_000


class Hand:
    def __init__(self):
        self.at = 1000 * SECOND

    def __call__(self):
        return self.at

    def wait(self, seconds):
        self.at += round(seconds * SECOND)


def timeline_of(clock, lived_seconds=100):
    """Of a process that started so long ago."""
    return Timeline(clock, lambda: ProcessStart(clock.at - lived_seconds * SECOND, "kernel"))
