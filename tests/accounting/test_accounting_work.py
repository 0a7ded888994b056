"""Sequences and work of a run by hand, from hand-made records."""

import pytest
from made_records import lines, process, train

from hf_efficient.accounting.account import account_of
from hf_efficient.records.account import NotMeasured
from hf_efficient.records.amounts import SequenceAccount, WorkAccount
from hf_efficient.records.steps import SequenceCounts, StepRecord, StepWork, TokenCounts

FACTS = {"dtype": "bf16", "peak_flops_per_second": 100.0, "peak_source": "a vendor"}
SHORT = SequenceCounts(2, 2, 3, 8, {"3": 1, "8": 1})
WORK = StepWork(60, 100)
LONG = SequenceCounts(1, 3, 2, 90, {"2": 1, "11": 1, "91": 1})


def step(number, *, rank=0, segment=0, sequences=SHORT, work=WORK, wall=2.0):
    tokens = TokenCounts(40, 11 if sequences is SHORT else 100, 5)
    phases = {"forward": 1.5, "evaluation": 0.5}
    record = StepRecord(
        segment, rank, number, None, wall, (number - 1) * wall, phases, 1, tokens, sequences=sequences, work=work
    )
    return record.to_json()


def facts(work=FACTS, process=0, **topics):
    told = {**({} if work is None else {"work": work}), **topics}
    return {"kind": "facts", "process": process, "facts": told}


def begins(number=0, way="trainer"):
    return [process(number, way=way), train(number, 1.0, number)]


def test_one_rank(tmp_path):
    """Two steps of two seconds, half a second of each in evaluation: three seconds of training."""
    lines(tmp_path / "spans.jsonl", *begins(), facts(data={"fill_rate": 0.9, "packs": 7}))
    lines(tmp_path / "steps.jsonl", step(1), step(2, sequences=LONG, work=StepWork(90, 110)))
    found = account_of(tmp_path)
    assert found.sequences == SequenceAccount(
        rows=3, samples=5, mean_tokens=111 / 5, shortest_tokens=2, longest_tokens=90,
        length_buckets={"2": 1, "3": 1, "8": 1, "11": 1, "91": 1}, samples_per_second=5 / 3, fill_rate=0.9,
    )  # fmt: skip
    assert list(found.sequences.length_buckets) == ["2", "3", "8", "11", "91"]
    assert found.work == WorkAccount(
        model_flops=150, hardware_flops=210, mfu=150 / (3 * 100), hfu=210 / (3 * 100), peak_flops_per_second=100.0,
        peak_source="a vendor", peak_estimated=False, accelerators=1, dtype="bf16", reason=None,
    )  # fmt: skip


def test_two_ranks_of_two_accelerators_each(tmp_path):
    """The slower rank trained for 3.5 seconds; four accelerators could have done 1,400 FLOPs."""
    lines(tmp_path / "spans.jsonl", *begins(), facts({**FACTS, "accelerators": 2}))
    lines(tmp_path / "steps.jsonl", step(1))
    lines(tmp_path / "steps.rank1.jsonl", step(1, rank=1, wall=4.0, sequences=LONG))
    found = account_of(tmp_path)
    assert (found.work.model_flops, found.work.hardware_flops, found.work.accelerators) == (120, 200, 4)
    assert (found.work.mfu, found.work.hfu) == (120 / 1400, 200 / 1400)
    assert (found.sequences.samples, found.sequences.samples_per_second) == (5, 5 / 3.5)


def test_a_resumed_run_adds_up_and_the_last_process_tells_its_device(tmp_path):
    lines(tmp_path / "spans.jsonl", *begins(), facts())
    lines(tmp_path / "spans.jsonl", *begins(1), facts({**FACTS, "peak_flops_per_second": 1000.0}, 1))
    lines(tmp_path / "steps.jsonl", step(1), step(2, segment=1))
    work = account_of(tmp_path).work
    assert (work.model_flops, work.peak_flops_per_second, work.mfu) == (120, 1000.0, 120 / 3000)


def test_a_step_that_does_not_know_leaves_the_run_unknown(tmp_path):
    lines(tmp_path / "spans.jsonl", *begins(), facts(data={"fill_rate": 0.9}))
    lines(tmp_path / "steps.jsonl", step(1), step(2, sequences=None, work=None))
    found = account_of(tmp_path)
    assert found.sequences == SequenceAccount(fill_rate=0.9)
    why = "the batches do not show their sequences: no input_ids, or an attention_mask or position_ids of another kind"
    assert (found.work.model_flops, found.work.mfu, found.work.reason) == (None, None, why)
    assert NotMeasured("FLOPs, MFU and HFU", why) in found.not_measured
    assert "sequences and their lengths" in [gap.what for gap in found.not_measured]


NO_CARD = {"peak_flops_per_second": None, "peak_reason": "no such card"}
NO_KERNEL = {"hardware_reason": "no such kernel"}


@pytest.mark.parametrize(
    ("told", "work", "what", "why"),
    [
        ({"reason": "no such model"}, None, "FLOPs, MFU and HFU", "no such model"),
        (NO_CARD, WORK, "MFU and HFU", "no such card"),
        (NO_KERNEL, StepWork(60, None), "FLOPs computed beyond those of the model, and HFU", "no such kernel"),
        ({**NO_KERNEL, **NO_CARD}, StepWork(60, None), "MFU and HFU", "no such card; no such kernel"),
    ],
)
def test_what_is_unknown_says_why(tmp_path, told, work, what, why):
    lines(tmp_path / "spans.jsonl", *begins(), facts({**FACTS, **told}))
    lines(tmp_path / "steps.jsonl", step(1, work=work))
    found = account_of(tmp_path)
    assert found.work.reason == why
    assert NotMeasured(what, why) in found.not_measured
    assert found.work.mfu == (60 / 150 if work is not None and "peak_reason" not in told else None)
    assert found.work.hfu is None


UNKNOWN = {**dict.fromkeys(FACTS), "accelerators": 1, "peak_estimated": False, "reason": "no such model"}


def test_a_call_that_does_not_know_says_why_for_all(tmp_path):
    """The first call's model is not known, the second's batches do not tell their sequences, the third's do."""
    lines(tmp_path / "spans.jsonl", *begins(), facts(UNKNOWN), *begins(1), facts(process=1))
    lines(tmp_path / "steps.jsonl", step(1, work=None), step(2, segment=1, sequences=None, work=None))
    assert account_of(tmp_path).work.reason == "no such model"
    lines(tmp_path / "spans.jsonl", *begins(2), facts(process=2))
    lines(tmp_path / "steps.jsonl", step(3, segment=2))
    found = account_of(tmp_path).work
    assert (found.model_flops, found.peak_flops_per_second, found.dtype) == (None, 100.0, "bf16")
    assert found.reason == "no such model"
