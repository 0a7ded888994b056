from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from hf_efficient.measure.tokens import TokenTally
from hf_efficient.records import TokenCounts

IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
LABELS = torch.tensor([[-100, 6, 7, -100], [-100, 6, -100, -100]])


def counted(*batches):
    tally = TokenTally()
    for batch in batches:
        tally.add(batch)
    assert tally.ready()
    return tally.counts()


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}, TokenCounts(8, 5, 3)),
        ({"input_ids": IDS, "attention_mask": MASK}, TokenCounts(8, 5, None)),
        ({"input_ids": IDS, "attention_mask": MASK.bool(), "labels": LABELS}, TokenCounts(8, 5, 3)),
        ({"input_ids": IDS, "labels": LABELS}, TokenCounts(8, None, 3)),
        (
            {"input_ids": IDS[:1], "position_ids": torch.arange(4)[None], "labels": LABELS[:1]},
            TokenCounts(4, 4, 2),
        ),
        (
            {"input_ids": IDS, "attention_mask": MASK, "completion_mask": LABELS.ne(-100)},
            TokenCounts(8, 5, 3),
        ),
        ({"input_ids": IDS, "labels": LABELS, "shift_labels": LABELS.roll(1, 1)}, TokenCounts(8, None, 3)),
        (
            {"input_ids": IDS, "attention_mask": torch.ones(2, 1, 4, 4), "labels": LABELS},
            TokenCounts(8, None, 3),
        ),
        ({"input_ids": IDS, "attention_mask": MASK, "labels": torch.tensor([0, 1])}, TokenCounts(8, 5, None)),
        (
            {"pixel_values": torch.ones(2, 3, 4, 4), "labels": torch.tensor([0, 1])},
            TokenCounts(None, None, 2),
        ),
        ({"input_ids": [[1, 2]]}, TokenCounts()),
        ([IDS, MASK], TokenCounts()),
    ],
)
def test_one_batch(batch, expected):
    assert counted(batch) == expected


def test_sum_of_micro_batches():
    whole = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}
    first = {name: tensor[:1, :3] for name, tensor in whole.items()}
    assert counted(whole, first) == TokenCounts(8 + 3, 5 + 3, 3 + 2)


def test_a_count_that_one_batch_does_not_tell_is_unknown():
    whole = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}
    assert counted(whole, {"input_ids": IDS}) == TokenCounts(16, None, None)


def test_nothing_fetched_is_not_zero():
    assert counted() == TokenCounts()


def test_a_padding_free_batch_of_trl():
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(
        [{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}]
    )
    assert counted(batch) == TokenCounts(5, 5, 3)


def test_counts_on_a_device_are_read_when_their_event_says_so(monkeypatch):
    """A device in name: what is not on the CPU is copied in the background and not read before its event."""
    arrived, waited = [], []

    class Event:
        def record(self):
            pass

        def query(self):
            return bool(arrived)

        def synchronize(self):
            waited.append(True)

    copies = []

    class OnDevice(torch.Tensor):
        @staticmethod
        def __new__(cls, value):
            return torch.Tensor._make_subclass(cls, torch.tensor(value))

        @property
        def device(self):
            return SimpleNamespace(type="cuda")

        def to(self, where, non_blocking):
            copies.append((where, non_blocking))
            return torch.tensor(6)

    monkeypatch.setattr("hf_efficient.measure.tokens._count", lambda batch: (8, OnDevice(6), None))
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(Event=Event))
    tally = TokenTally()
    tally.add({})
    assert copies == [("cpu", True)]
    assert not tally.ready()
    arrived.append(True)
    assert tally.ready()
    assert tally.counts() == TokenCounts(8, 6, None)
    assert waited == []
    arrived.clear()
    tally.add({})
    assert tally.counts() == TokenCounts(16, 12, None)
    assert waited == [True]
