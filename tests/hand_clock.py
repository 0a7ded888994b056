"""A clock that is set by hand, and a timeline of a process by it."""

import json

from hf_efficient.recording.meters import ProcessStart
from hf_efficient.recording.steps import StepRecorder
from hf_efficient.recording.timeline import Timeline

SECOND = 1_000_000_000


class Hand:
    def __init__(self):
        self.at = 1000 * SECOND

    def __call__(self):
        return self.at

    def wait(self, seconds):
        self.at += round(seconds * SECOND)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def timeline_of(clock, lived_seconds=100):
    """Of a process that started so long ago."""
    return Timeline(clock, lambda: ProcessStart(clock() - lived_seconds * SECOND, "kernel"))


def recorder_of(clock, folder, device=None):
    """A recorder of the steps of a run that is recorded there; ``end`` writes them."""
    timeline = timeline_of(clock)
    timeline.open(folder, 0, "trainer")
    recorder = StepRecorder(timeline)
    recorder.open(device)
    return recorder
