"""What a recorder tells of the step under way, and a run's log of it, by a clock that is set by hand."""

from __future__ import annotations

import json

import pytest
import torch
from hand_clock import Hand, timeline_of

from hf_efficient.accounting.processes import read_processes
from hf_efficient.recording.steps import RunLog, StepRecorder
from hf_efficient.records.steps import TokenCounts


@pytest.fixture
def clock():
    return Hand()


@pytest.fixture
def recorder(clock, tmp_path):
    timeline = timeline_of(clock)
    timeline.open(tmp_path, 0, "trainer")
    recorder = StepRecorder(timeline=timeline)
    recorder.open(tmp_path, 0)
    yield recorder
    recorder.close()
    timeline.release()


def run_step(recorder, clock, number):
    """2 s of forward, 1 s of nothing; four of five positions hold a token."""
    recorder.next_step()
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    recorder.add_batches([{"input_ids": mask, "attention_mask": mask, "labels": mask}])
    with recorder.phase("forward"):
        clock.wait(2)
    clock.wait(1)
    recorder.step_done(number, None)


def test_the_step_under_way_as_far_as_it_has_come(recorder, clock, tmp_path):
    assert recorder.under_way() is None
    recorder.next_step()
    assert recorder.under_way() is None  # its update is not done
    run_step(recorder, clock, 1)
    with recorder.phase("logging", opaque=True):
        clock.wait(0.5)
        seen = recorder.under_way()
        assert seen is not None
        assert (seen.step, seen.wall_seconds, seen.phase_seconds) == (1, 3.5, {"forward": 2.0, "logging": 0.5})
        assert seen.tokens == TokenCounts(5, 4, 5)
        clock.wait(0.25)
    recorder.close()
    (record,) = (json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines())
    assert record["phase_seconds"] == {"forward": 2.0, "logging": 0.75}
    assert recorder.under_way() is None


def test_figures_since_the_log_before_and_of_the_whole_call(recorder, clock):
    log = RunLog(recorder)
    run_step(recorder, clock, 1)
    first = log.figures(1)
    assert first["efficiency/step_seconds_p50"] == 3.0
    assert first["efficiency/non_padding_tokens_per_second"] == pytest.approx(4 / 3.0)
    clock.wait(1)  # the log itself
    for number in (2, 3):
        run_step(recorder, clock, number)
    second = log.figures(3)
    assert second["efficiency/step_seconds_p95"] == 3.0
    assert second["efficiency/non_padding_tokens_per_second"] == pytest.approx(8 / 7.0)
    assert second["efficiency/unattributed_share"] == pytest.approx(3 / 7.0)
    recorder.end_loop()
    whole = log.figures(3, whole=True)
    assert whole["efficiency/run/non_padding_tokens_per_second"] == pytest.approx(12 / 10.0)
    assert whole["efficiency/run/wall_seconds"] == 110.0
    recorder.close()
    assert log.figures(3) == {}


def test_evaluations_and_saves_are_noted(recorder, clock, tmp_path):
    log = RunLog(recorder)
    log.evaluated(5, 2.5, {"loss": 3.0, "perplexity": None})
    log.saved(5, 0.5)
    live = recorder.timeline.live
    assert (live.figures.evaluations.mean_seconds, live.figures.saves.mean_seconds) == (2.5, 0.5)
    recorder.close()
    log.evaluated(6, 1.5, {})  # after the training
    recorder.timeline.release()
    (process,) = read_processes(tmp_path / "spans.jsonl")
    noted = [(note["step"], note["seconds"], note["metrics"]) for note in process.notes["evaluation"]]
    assert noted == [(5, 2.5, {"loss": 3.0, "perplexity": None}), (6, 1.5, {})]
    assert [(note["step"], note["seconds"]) for note in process.notes["save"]] == [(5, 0.5)]


def test_without_records_there_is_nothing_to_say():
    log = RunLog(StepRecorder())
    log.evaluated(1, 1.0, {})
    log.saved(1, 1.0)
    assert (log.now_seconds(), log.figures(1)) == (0.0, {})
