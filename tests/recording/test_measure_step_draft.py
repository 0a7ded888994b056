from __future__ import annotations

import json
import logging
import math

import pytest
import torch

from hf_efficient.recording.phases import Glimpse, Span
from hf_efficient.recording.steps import Counting, Segment, StepDraft, encode_draft
from hf_efficient.records.steps import SequenceCounts, StepRecord, TokenCounts

SEGMENT = Segment(number=2, rank=1, opened_ns=1_000_000_000)


def draft(counting=None, **known):
    counting = counting or Counting()
    made = StepDraft(SEGMENT, counting)
    ids = torch.ones((2, 4), dtype=torch.int64)
    made.tally.add({"input_ids": ids, "attention_mask": ids, "labels": torch.tensor([[-100, 1, 1, 1]] * 2)})
    for name, value in {"micro_batches": 1, "step": 7, "epoch": 0.5, **known}.items():
        setattr(made, name, value)
    return made


def test_a_record_by_hand():
    span = Span(start_ns=3_000_000_000, wall_ns=2_000_000_000, phase_ns={"forward": 500_000_000})
    assert draft(span=span, loss=0.25, device_seconds={"forward": 0.125}).record() == StepRecord(
        segment=2,
        rank=1,
        step=7,
        epoch=0.5,
        wall_seconds=2.0,
        started_at_seconds=2.0,
        phase_seconds={"forward": 0.5},
        micro_batches=1,
        tokens=TokenCounts(8, 8, 6),
        sequences=SequenceCounts(2, 2, 4, 4, {"4": 2}),
        device_seconds={"forward": 0.125},
        loss=0.25,
    )


def test_so_far_holds_what_is_open():
    seen = Glimpse(0, 2_000_000_000, 3_000_000_000, {"forward": 500_000_000}, "forward")
    record = draft().so_far(seen, 5_000_000_000)
    assert (record.wall_seconds, record.started_at_seconds, record.phase_seconds) == (3.0, 1.0, {"forward": 2.5})


@pytest.mark.parametrize(("loss", "told"), [(0.25, 0.25), (math.nan, "nan"), (-math.inf, "-inf")])
def test_a_line_is_strict_json_and_reads_as_the_record(loss, told):
    step = draft(span=Span(0, 3, {"forward": 1}), loss=loss)
    data = json.loads(encode_draft(step))
    assert data == step.record().to_json()
    assert data["loss"] == told


def test_a_fault_of_the_counting_is_one_warning_and_costs_the_counts_alone(caplog):
    class Formula:
        needs_scored = False

        def flops(self, batch):
            return 1 / 0

    counting = Counting(Formula())
    with caplog.at_level(logging.WARNING, logger="hf_efficient"):
        found = [draft(counting, span=Span(0, 3, {})).record() for _ in range(2)]
    assert [(one.tokens, one.sequences, one.work) for one in found] == [(TokenCounts(), None, None)] * 2
    assert [one.wall_seconds for one in found] == [3e-9] * 2
    assert [one.getMessage() for one in caplog.records] == [
        "Tokens and FLOPs are no longer counted, because of a fault."
    ]


def test_batches_are_kept_once_a_step_has_shown_that_nobody_writes_into_them():
    counting = Counting()
    nothing, first = StepDraft(SEGMENT, counting).tally, StepDraft(SEGMENT, counting).tally
    nothing.add([1])
    counting.step_ends(nothing)
    first.add({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])})
    counting.step_ends(first)
    batch = {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])}
    later = StepDraft(SEGMENT, counting).tally
    later.add(batch)
    batch["labels"].fill_(-100)
    assert later.counts() == TokenCounts()  # it was kept, and no longer tells


def test_batches_of_a_trainer_that_writes_into_them_are_counted_at_once():
    counting = Counting()
    for _ in range(3):
        batch = {"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([[1, 2]])}
        tally = StepDraft(SEGMENT, counting).tally
        tally.add(batch)
        batch["labels"].fill_(-100)
        counting.step_ends(tally)
        assert tally.counts() == TokenCounts(2, None, 2)
