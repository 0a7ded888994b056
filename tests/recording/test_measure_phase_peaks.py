"""Peaks per phase of an allocator whose books are replayed."""

from __future__ import annotations

import pytest

from hf_efficient.recording.device import PhasePeaks
from hf_efficient.records.steps import StepMemory


class Allocator:
    """Keeps books as torch's CUDA allocator does; holds on to the most that it ever had."""

    def __init__(self):
        self.current = self.peak = self.reserved = self.reserved_peak = self.retries = 0
        self.now = 0
        self.reads = 0

    def change(self, by):
        self.current += by
        self.peak = max(self.peak, self.current)
        self.reserved = max(self.reserved, self.current)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def use(self, size):
        """Allocate for a moment."""
        self.change(size)
        self.change(-size)

    def release_cache(self):
        self.reserved = self.current
        self.retries += 1

    def read(self):
        self.now += 10
        self.reads += 1
        return {
            "allocated_bytes": {"all": {"current": self.current, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved_peak}},
            "num_alloc_retries": self.retries,
        }

    def reset(self):
        self.peak, self.reserved_peak = self.current, self.reserved


@pytest.fixture
def allocator():
    return Allocator()


@pytest.fixture
def kept():
    return []


@pytest.fixture
def peaks(allocator, kept):
    allocator.change(100)  # the model
    allocator.use(900)  # its conversion, before training
    return PhasePeaks(allocator.read, allocator.reset, lambda *both: kept.append(both), lambda: allocator.now)


def step(peaks, allocator, forward=50, backward=80, optimizer=20):
    peaks.enter("data_wait")  # allocates nothing worth a look
    peaks.enter("forward")
    allocator.use(forward)
    peaks.enter("backward")
    allocator.use(backward)
    peaks.enter("optimizer")
    allocator.use(optimizer)
    peaks.enter("optimizer")
    allocator.now += 1_000_000


def test_a_step_by_hand(peaks, allocator, kept):
    step(peaks, allocator)
    allocator.change(7)  # the optimizer's state stays
    assert peaks.cut() == StepMemory(180, 1000, {"forward": 150, "backward": 180, "optimizer": 120}, 0)
    assert kept[0] == (1000, 1000)  # what was before the first step
    assert max(allocated for allocated, _ in kept[1:]) == 180
    step(peaks, allocator, forward=60)
    assert peaks.cut() == StepMemory(187, 1000, {"forward": 167, "backward": 187, "optimizer": 127}, 0)


def test_micro_batches_an_evaluation_and_what_lies_outside(peaks, allocator):
    allocator.use(500)  # a callback at the beginning of the step
    step(peaks, allocator, forward=10)
    allocator.release_cache()
    step(peaks, allocator, forward=30, backward=40)
    peaks.enter("evaluation")
    allocator.use(300)
    memory = peaks.cut()
    assert memory == StepMemory(
        600, 1000, {"forward": 130, "backward": 180, "optimizer": 120, "evaluation": 400}, allocation_retries=1
    )
    step(peaks, allocator)
    assert peaks.cut() == StepMemory(
        180, 400, {"forward": 150, "backward": 180, "optimizer": 120}, 1
    )  # after the retry the cache was smaller


def test_four_looks_per_step_and_none_at_a_phase_that_goes_on(peaks, allocator):
    reads = allocator.reads
    step(peaks, allocator)
    peaks.cut()
    assert allocator.reads - reads == 4


def test_short_steps_are_looked_at_less_often(peaks, allocator, kept):
    """A step's four looks take 40, so that it must be 20,000 until the next step that is looked at."""

    def short(use):
        step(peaks, allocator, backward=use)
        allocator.now -= 1_000_000 - 8_000
        return peaks.cut()

    assert short(80) is not None
    assert [short(200), short(201)] == [None, None]  # they end after 16,000 and 24,000
    memory = short(60)
    assert memory is not None
    assert memory.phase_peak_allocated_bytes["backward"] == 160
    assert memory.peak_allocated_bytes == 160  # nothing of those in between
    assert max(allocated for allocated, _ in kept[1:]) == 100 + 201  # which the run's peak holds all the same
