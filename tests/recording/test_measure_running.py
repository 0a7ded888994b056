from __future__ import annotations

import pytest

from hf_efficient.recording.live import Earlier, RecentSpeed, RunningFigures
from hf_efficient.records.steps import StepMemory, StepRecord, StepWork, TokenCounts


def step(number, wall=2.0, tokens=(10, 8, 4), flops=None, peak=None, **phases):
    return StepRecord(
        segment=0,
        rank=0,
        step=number,
        epoch=None,
        wall_seconds=wall,
        started_at_seconds=0.0,
        phase_seconds=phases,
        micro_batches=1,
        tokens=TokenCounts(*tokens),
        work=None if flops is None else StepWork(flops, 2 * flops),
        memory=None if peak is None else StepMemory(peak, 2 * peak),
    )


def test_sums_of_the_whole_call():
    figures = RunningFigures()
    figures.add(step(1, 2.0, flops=100, peak=7, data_wait=0.5, forward=1.0))
    figures.add(step(2, 6.0, flops=300, peak=5, data_wait=0.25, forward=0.75, evaluation=3.0, checkpointing=1.0))
    whole = figures.whole()
    assert (whole.steps, whole.wall_seconds, whole.training_seconds) == (2, 8.0, 4.0)
    assert (whole.data_wait_seconds, whole.unattributed_seconds) == (0.75, 1.5)
    assert (whole.processed, whole.non_padding, whole.loss_bearing) == (20, 16, 8)
    assert (whole.model_flops, whole.hardware_flops, whole.peak_allocated_bytes) == (400, 800, 7)
    assert list(whole.step_seconds) == [2.0, 2.0]


def test_what_one_step_does_not_know_is_not_known():
    figures = RunningFigures()
    figures.add(step(1, flops=100))
    figures.add(step(2, tokens=(10, None, 4)))
    figures.add(step(3, flops=100))
    whole = figures.whole()
    assert (whole.processed, whole.non_padding, whole.model_flops, whole.peak_allocated_bytes) == (30, None, None, None)


def test_windows_tile_the_call():
    figures = RunningFigures()
    figures.add(step(1, 2.0, peak=9, data_wait=0.5))
    # The log of step 2 sees 1.5 of its 2.5 seconds.
    first = figures.take_window(step(2, 1.5, data_wait=0.5))
    assert (first.steps, first.wall_seconds, first.non_padding, first.peak_allocated_bytes) == (2, 3.5, 16, 9)
    assert list(first.step_seconds) == [2.0, 1.5]
    figures.add(step(2, 2.5, data_wait=0.5))
    figures.add(step(3, 3.0, tokens=(10, None, 4), peak=4))
    second = figures.take_window(None)
    assert (second.steps, second.wall_seconds, second.data_wait_seconds) == (1, 4.0, 0.0)
    assert (second.processed, second.non_padding, second.peak_allocated_bytes) == (10, None, 4)
    assert list(second.step_seconds) == [3.0]
    third = figures.take_window(step(4, 1.0))  # which knows its tokens, unlike the window before
    assert (third.steps, third.wall_seconds, third.non_padding, third.peak_allocated_bytes) == (1, 1.0, 8, None)
    assert list(third.step_seconds) == [1.0]
    figures.add(step(4, 1.25))
    whole = figures.whole()
    assert (whole.steps, whole.wall_seconds, whole.peak_allocated_bytes) == (4, 8.75, 9)
    assert whole.wall_seconds == first.wall_seconds + second.wall_seconds + third.wall_seconds + 0.25


def test_an_empty_window():
    empty = RunningFigures().take_window(None)
    assert (empty.steps, empty.wall_seconds, list(empty.step_seconds)) == (0, 0.0, [])


def test_the_pace_is_that_of_the_last_steps_without_the_warm_up():
    figures = RunningFigures()
    assert figures.step_seconds() is None
    for number, wall in enumerate([50.0, 40.0, 30.0, 2.0, 2.0, 4.0, 4.0], start=1):
        figures.add(step(number, wall, tokens=(10, number, 4), flops=10))
    assert figures.step_seconds() == 3.0
    assert figures.rates() == RecentSpeed(3.0, (4 + 5 + 6 + 7) / 12.0, 40 / 12.0)
    for number in range(8, 108):
        figures.add(step(number, 1.0))
    assert figures.step_seconds() == 1.0  # the last hundred
    assert figures.rates() == RecentSpeed(1.0, 8.0, None)


def test_evaluations_and_saves_by_their_step():
    figures = RunningFigures()
    figures.evaluations.add(10, 20.0)
    figures.evaluations.add(10, 10.0)  # its second data set
    figures.evaluations.add(20, 40.0)
    figures.saves.add(20, 3.0)
    assert (figures.evaluations.mean_seconds, figures.saves.mean_seconds) == (35.0, 3.0)


def test_what_earlier_processes_did_is_known_from_the_start():
    figures = RunningFigures(Earlier(100.0, evaluations=2, evaluation_seconds=50.0, saves=1, save_seconds=4.0))
    assert (figures.evaluations.mean_seconds, figures.saves.mean_seconds) == (25.0, 4.0)
    figures.evaluations.add(30, 40.0)
    assert figures.evaluations.mean_seconds == 30.0


def test_rates_of_nothing():
    assert RunningFigures().rates() == RecentSpeed(None, None, None)
    figures = RunningFigures()
    figures.add(step(1, 0.0))
    assert figures.rates().step_seconds is None
    assert figures.step_seconds() == pytest.approx(0.0)


def test_steps_that_have_ended_are_caught_up_with_before_anything_is_told():
    figures = RunningFigures(catch_up=lambda: figures.add(step(1, 2.0)))
    assert figures.steps == 1
    assert figures.whole().wall_seconds == 4.0
    assert figures.take_window(None).wall_seconds == 6.0
    assert figures.step_seconds() == 2.0
