"""From micro-batches to the record of a step, and a run's figures for its logs, by a clock that is set by hand."""

import logging
import math

import pytest
import torch
from hand_clock import timeline_of

from hf_efficient.accounting.run_records import RunReader
from hf_efficient.recording.events import Span
from hf_efficient.recording.steps import Counting, Segment, StepDraft, StepRecorder
from hf_efficient.records.steps import SequenceCounts, StepRecord, TokenCounts
from tests.conftest import read_steps

SEGMENT = Segment(number=2, rank=1, opened_ns=1_000_000_000)


def draft(counting=None, **known):
    made = StepDraft(SEGMENT, counting or Counting())
    ids = torch.ones((2, 4), dtype=torch.int64)
    made.tally.add({"input_ids": ids, "attention_mask": ids, "labels": torch.tensor([[-100, 1, 1, 1]] * 2)})
    for name, value in {"micro_batches": 1, "step": 7, "epoch": 0.5, **known}.items():
        setattr(made, name, value)
    return made


def test_a_record_by_hand():
    span = Span(3_000_000_000, 5_000_000_000, {"forward": 500_000_000})
    assert draft(logged={"loss": 0.25}, device_seconds={"forward": 0.125}).record(span) == StepRecord(
        *(2, 1, 7, 0.5, 2.0, 2.0, {"forward": 0.5}, 1, TokenCounts(8, 8, 6)),
        sequences=SequenceCounts(2, 2, 4, 4, {"4": 2}), device_seconds={"forward": 0.125}, loss=0.25,
    )  # fmt: skip


def test_a_fault_of_the_counting_is_one_warning_and_costs_the_counts_alone(caplog):
    class Formula:
        needs_scored = False

        def flops(self, batch):
            return 1 / 0

    counting = Counting(Formula())
    with caplog.at_level(logging.WARNING, logger="hf_efficient"):
        found = [draft(counting).record(Span(0, 3, {})) for _ in range(2)]
    assert [(one.tokens, one.sequences, one.work) for one in found] == [(TokenCounts(), None, None)] * 2
    assert [one.wall_seconds for one in found] == [3e-9] * 2
    assert len(caplog.records) == 1


@pytest.fixture
def recorder(hand, tmp_path):
    timeline = timeline_of(hand)
    timeline.open(tmp_path, 0, "trainer")
    recorder = StepRecorder(timeline)
    recorder.open()
    yield recorder
    recorder.close()
    timeline.release()


def run_step(recorder, hand, number):
    """2 s of forward, 1 s of nothing; four of five positions hold a token."""
    recorder.next_step()
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    recorder.add_batches([{"input_ids": mask, "attention_mask": mask, "labels": mask}])
    with recorder.phase("forward"):
        hand.wait(2)
    hand.wait(1)
    recorder.step_done(number, None)


def test_the_step_under_way_as_far_as_it_has_come(recorder, hand, tmp_path):
    assert recorder.under_way() is None
    recorder.next_step()
    assert recorder.under_way() is None  # its update is not done
    run_step(recorder, hand, 1)
    with recorder.phase("logging", opaque=True):
        hand.wait(0.5)
        seen = recorder.under_way()
        assert (seen.step, seen.wall_seconds, seen.phase_seconds) == (1, 3.5, {"forward": 2.0, "logging": 0.5})
        assert seen.tokens == TokenCounts(5, 4, 5)
        hand.wait(0.25)
    recorder.end()
    (record,) = read_steps(tmp_path / "steps.jsonl")
    assert record.phase_seconds == {"forward": 2.0, "logging": 0.75}
    assert recorder.under_way() is None


def test_figures_since_the_log_before_and_of_the_whole_call(recorder, hand):
    run_step(recorder, hand, 1)
    first = recorder.figures(1)
    assert first["efficiency/step_seconds_p50"] == 3.0
    assert first["efficiency/non_padding_tokens_per_second"] == pytest.approx(4 / 3.0)
    hand.wait(1)  # the log itself
    for number in (2, 3):
        run_step(recorder, hand, number)
    second = recorder.figures(3)
    assert second["efficiency/step_seconds_p95"] == 3.0
    assert second["efficiency/non_padding_tokens_per_second"] == pytest.approx(8 / 7.0)
    assert second["efficiency/unattributed_share"] == pytest.approx(3 / 7.0)
    recorder.end_loop()
    whole = recorder.figures(3, whole=True)
    assert whole["efficiency/run/non_padding_tokens_per_second"] == pytest.approx(12 / 10.0)
    assert whole["efficiency/run/wall_seconds"] == 110.0
    recorder.close()
    assert recorder.figures(3) == {}


def test_an_abandoned_step_forgets_its_batches_and_its_marks_but_not_its_time(recorder, hand, tmp_path):
    recorder.next_step()
    recorder.add_batches([{"input_ids": torch.ones((4, 100))}])
    recorder.mark("forward")
    hand.wait(1)
    recorder.abandon_step()
    hand.wait(2)
    run_step(recorder, hand, 1)
    recorder.end()
    (record,) = read_steps(tmp_path / "steps.jsonl")
    assert (record.tokens.processed, record.micro_batches, record.wall_seconds) == (5, 1, 6.0)
    assert record.phase_seconds == {"forward": 3.0}


def test_evaluations_and_saves_are_noted(recorder, hand, tmp_path):
    recorder.evaluated(5, 2.5, {"eval_loss": 3.0, "eval_perplexity": math.inf, "eval_runtime": 2.5, "epoch": 1.0})
    recorder.saved(5, 0.5)
    live = recorder.timeline.live
    assert (live.figures.evaluations.mean_seconds, live.figures.saves.mean_seconds) == (2.5, 0.5)
    recorder.close()
    recorder.evaluated(6, 1.5, {})  # after the training
    recorder.timeline.release()
    (process,) = RunReader(tmp_path).look().processes
    noted = [(note["step"], note["seconds"], note["metrics"]) for note in process.notes["evaluation"]]
    assert noted == [(5, 2.5, {"loss": 3.0, "perplexity": None}), (6, 1.5, {})]
    assert [(note["step"], note["seconds"]) for note in process.notes["save"]] == [(5, 0.5)]
