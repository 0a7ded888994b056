from types import SimpleNamespace

import pytest
import torch
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from hf_efficient.estimate.flops import Coefficients, MicroBatch, WorkFormula
from hf_efficient.recording import tokens
from hf_efficient.records.steps import SequenceCounts, StepWork, TokenCounts

IDS = torch.tensor([[5, 6, 7, 0], [5, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
LABELS = torch.tensor([[-100, 6, 7, -100], [-100, 6, -100, -100]])
WHOLE = {"input_ids": IDS, "attention_mask": MASK, "labels": LABELS}
FIRST = {name: tensor[:1, :3] for name, tensor in WHOLE.items()}
PROMPT = torch.tensor([[0, 9], [8, 9]])
GENERATED = {"prompt_ids": PROMPT, "prompt_mask": PROMPT.ne(0), "completion_ids": IDS, "completion_mask": MASK}


def tally_of(*batches, scored=False):
    tally = tokens.TokenTally(scored)
    for batch in batches:
        tally.add(batch)
    return tally


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (WHOLE, TokenCounts(8, 5, 3)),
        ({"input_ids": IDS, "attention_mask": MASK}, TokenCounts(8, 5, None)),
        ({"input_ids": IDS, "attention_mask": MASK.bool(), "labels": LABELS}, TokenCounts(8, 5, 3)),
        ({"input_ids": IDS, "labels": LABELS}, TokenCounts(8, 8, 3)),
        ({"input_ids": IDS[:1], "position_ids": torch.arange(4)[None], "labels": LABELS[:1]}, TokenCounts(4, 4, 2)),
        ({"input_ids": IDS, "attention_mask": MASK, "completion_mask": LABELS.ne(-100)}, TokenCounts(8, 5, 3)),
        ({"input_ids": IDS, "labels": LABELS, "shift_labels": LABELS.roll(1, 1)}, TokenCounts(8, 8, 3)),
        ({"input_ids": IDS, "attention_mask": torch.ones(2, 1, 4, 4), "labels": LABELS}, TokenCounts(8, None, 3)),
        ({"input_ids": IDS, "attention_mask": MASK, "labels": torch.tensor([0, 1])}, TokenCounts(8, 5, None)),
        ({"pixel_values": torch.ones(2, 3, 4, 4), "labels": torch.tensor([0, 1])}, TokenCounts()),
        ({"inputs_embeds": torch.ones(2, 4, 8), "labels": LABELS}, TokenCounts(None, None, 3)),
        ({"input_ids": [[1, 2]]}, TokenCounts()),
        (GENERATED, TokenCounts(2 * (2 + 4), 3 + 5, 5)),
        ({**GENERATED, "tool_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])}, TokenCounts(12, 8, 4)),
        ([IDS, MASK], TokenCounts()),
    ],
)
def test_one_batch(batch, expected):
    tally = tally_of(batch)
    assert tally.ready()
    assert tally.counts() == expected


def test_counts_of_several_batches():
    assert tally_of(WHOLE, FIRST).counts() == TokenCounts(8 + 3, 5 + 3, 3 + 2)
    assert tally_of(WHOLE, {"input_ids": IDS}).counts() == TokenCounts(16, 5 + 8, None)  # one has no labels
    assert tally_of().counts() == TokenCounts()  # nothing is not zero


PACK = {
    "input_ids": torch.arange(7)[None],
    "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]]),
    "labels": torch.tensor([[-100, 1, 2, -100, 4, 5, 6]]),
}
FORMULA = WorkFormula(Coefficients(0, {None: 1}, 0), Coefficients(0, {None: 1}, 0), "square")
"""Counts pairs of query and key: those needed, and those of the square."""


def test_sequences_of_padded_and_packed_batches():
    assert tally_of(WHOLE, PACK).sequences() == SequenceCounts(
        rows=3, documents=4, shortest=2, longest=4, length_buckets={"2": 1, "3": 2, "4": 1}
    )


def test_without_a_mask_each_row_is_a_document():
    """As the model computes it: a mask of ones comes to the same."""
    bare = {"input_ids": IDS, "labels": LABELS}
    masked = {**bare, "attention_mask": torch.ones_like(IDS)}
    for batch in (bare, {**bare, "attention_mask": None}):
        assert tally_of(batch).counts() == tally_of(masked).counts() == TokenCounts(8, 8, 3)
        assert tally_of(batch).sequences() == tally_of(masked).sequences()
        assert tally_of(batch).work(FORMULA) == tally_of(masked).work(FORMULA)


def test_padding_on_the_left_is_no_token():
    left = {"input_ids": IDS, "attention_mask": MASK.flip(-1)}
    assert tally_of(left).sequences() == tally_of(WHOLE).sequences()
    assert tally_of(left).counts() == TokenCounts(8, 5, None)


def test_pairs_by_hand():
    """Rows of 3 and 2 of 4: 6 + 3 of 32; documents of 3 and 4 in a row of 7: 6 + 10 of 49."""
    assert tally_of(WHOLE, PACK).work(FORMULA) == StepWork(6 + 3 + 6 + 10, 2 * 16 + 49)


@pytest.mark.parametrize(
    ("batch", "scored"),
    [
        (WHOLE, 3),
        ({"input_ids": IDS, "attention_mask": MASK, "labels": IDS}, 6),  # the first of each row is not predicted
        ({"input_ids": IDS, "attention_mask": MASK, "labels": IDS, "shift_labels": IDS}, 8),
        ({"input_ids": IDS, "attention_mask": MASK, "completion_mask": torch.tensor([[1, 1, 0, 1], [0, 0, 1, 1]])}, 4),
        (PACK, 5),
    ],
)
def test_target_tokens_that_are_scored(batch, scored):
    head = Coefficients(0, {None: 0}, 1)
    formula = WorkFormula(head, head, "square", "scored")
    assert tally_of(batch, scored=True).work(formula) == StepWork(scored, scored)
    assert tally_of(batch).work(formula) is None


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": IDS, "cu_seq_lens_q": torch.tensor([0, 8])},
        {"input_ids": IDS, "attention_mask": torch.ones(2, 1, 4, 4)},
        {"input_ids": IDS, "position_ids": torch.arange(4)[None] + 3},
        {"input_ids": [[1, 2]], "attention_mask": MASK},
        {"pixel_values": torch.ones(2, 3, 4, 4)},
        [IDS, MASK],
        {**WHOLE, "decoder_input_ids": IDS},
    ],
)
def test_a_batch_that_does_not_tell_leaves_the_step_unknown(batch):
    tally = tally_of(WHOLE, batch)
    assert tally.sequences() is None
    assert tally.work(FORMULA) is None


def test_preference_data_of_trl():
    """Chosen and rejected are a row each, and a document each."""
    examples = [
        {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [6]},
        {"prompt_ids": [7, 8], "chosen_ids": [9], "rejected_ids": [10, 11]},
    ]
    tally = tally_of(DataCollatorForPreference(pad_token_id=0)(examples))
    assert tally.counts() == TokenCounts(20, 5 + 3 + 4 + 4, 2 + 1 + 1 + 2)
    assert tally.sequences() == SequenceCounts(4, 4, 3, 5, {"3": 1, "4": 2, "5": 1})


def test_labelled_answers_of_trl_without_those_that_run_forward_alone():
    examples = [{"prompt_ids": [1, 2], "completion_ids": [3], "KL_completion_ids": [4, 5], "label": True}]
    tally = tally_of(DataCollatorForUnpairedPreference(pad_token_id=0)(examples))
    assert tally.counts() == TokenCounts(3, 3, 1)
    assert tally.sequences() == SequenceCounts(1, 1, 3, 3, {"3": 1})


def test_preference_data_of_the_experimental_trainers():
    """Both sides are computed as long as the longer one."""
    batch = {
        "chosen_input_ids": torch.tensor([[1, 2, 3, 4], [1, 2, 0, 0]]),
        "rejected_input_ids": torch.tensor([[1, 2, 5], [1, 2, 6]]),
        "prompt_input_ids": torch.tensor([[1], [1]]),
    }
    for side in ("chosen", "rejected"):
        ids = batch[f"{side}_input_ids"]
        batch[f"{side}_attention_mask"] = ids.ne(0).long()
        batch[f"{side}_labels"] = torch.where(ids > 1, ids, -100)
    tally = tally_of(batch)
    assert tally.counts() == TokenCounts(4 * 4, 4 + 2 + 3 + 3, 3 + 1 + 2 + 2)
    assert tally.sequences() == SequenceCounts(4, 4, 2, 4, {"2": 1, "3": 2, "4": 1})
    del batch["rejected_labels"]
    assert tally_of(batch).counts() == TokenCounts()


@pytest.mark.parametrize("packed", [False, True])
def test_counts_on_a_device_are_read_when_their_event_says_so(monkeypatch, packed):
    """A device in name: what is not on the CPU is copied in the background and not read before its event."""
    arrived, waited, copies = [], [], []

    class Event:
        def record(self):
            pass

        def query(self):
            return bool(arrived)

        def synchronize(self):
            waited.append(True)

    class OnDevice(torch.Tensor):
        @property
        def device(self):
            return SimpleNamespace(type="cuda")

        def to(self, where, non_blocking):
            copies.append((where, non_blocking))
            return self.as_subclass(torch.Tensor)

        def __int__(self):
            raise AssertionError("a tensor on the device was read")

        tolist = __int__

    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(Event=Event))
    batch = {name: tensor.as_subclass(OnDevice) for name, tensor in (PACK if packed else WHOLE).items()}
    tally = tokens.TokenTally(scored=True)
    tally.add(batch)
    assert copies == [("cpu", True)] * 3  # row sums or starts, target and scored tokens
    assert not tally.ready()
    arrived.append(True)
    assert tally.ready()
    expected = tally_of(PACK if packed else WHOLE)
    for read in (tokens.TokenTally.counts, tokens.TokenTally.sequences, lambda one: one.work(FORMULA)):
        assert read(tally) == read(expected)
    assert waited == []
    arrived.clear()
    tally = tokens.TokenTally()
    tally.add(batch)
    assert tally.counts() == expected.counts()
    assert waited == [True]


def test_bounds_are_a_quarter_of_an_octave_apart():
    assert tokens.LENGTH_BOUNDS[:21] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 23, 27, 32, 38, 45, 54, 64, 76)
    assert tokens.LENGTH_BOUNDS[-1] == 2**24
    assert {2**octave for octave in range(25)} <= set(tokens.LENGTH_BOUNDS)


def test_lengths_beyond_the_bounds_and_none():
    beyond = tokens.sequence_counts([MicroBatch(1, 2**25, [2**25])])
    assert (beyond.length_buckets, beyond.longest) == ({str(2**24): 1}, 2**25)
    assert tokens.sequence_counts([]) is tokens.sequence_counts([MicroBatch(2, 4, [])]) is None


@pytest.mark.parametrize(
    ("positions", "shape", "documents"),
    [
        ([[0, 1, 2, 0, 1]], (1, 5), [3, 2]),
        ([[0, 1, 0], [0, 0, 1]], (2, 3), [2, 1, 1, 2]),
        ([[0, 1, 2]], (2, 3), [3, 3]),  # one row of positions for all
        ([[0, 1, 0, 0]], (1, 4), [2, 1, 1]),  # padded to a multiple: documents of one token, to the attention too
        ([[3, 4, 0, 1]], (1, 4), None),  # goes on with the document of another row
        ([[[0, 1, 2]]], (1, 3), None),
        ([[0, 1, 2]], (1, 4), None),
    ],
)
def test_documents_by_positions(positions, shape, documents):
    starts = tokens.document_starts(torch.tensor(positions), torch.Size(shape))
    assert (None if starts is None else tokens.documents_of_starts(starts)) == documents
