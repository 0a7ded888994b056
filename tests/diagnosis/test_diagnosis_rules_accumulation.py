"""Accumulation where larger micro-batches fit."""

from __future__ import annotations

import pytest

from hf_efficient.diagnosis.rules.batching import accumulation, small_micro_batch
from hf_efficient.records.findings import Abstention
from tests.diagnosis.cases import case_in, settings, step
from tests.diagnosis.memory_facts import GIB, memory


def accumulated(times=8, fixed=0.06, each=0.001, count=21):
    """Steps of so many micro-batches of one row of 30 or 50 tokens, which take ``fixed + each * tokens`` seconds."""
    made = []
    for number in range(1, count + 1):
        tokens = 30 if number % 2 else 50
        seconds = times * (fixed + each * tokens)
        phases = {"forward": seconds / 4, "backward": 3 * seconds / 4}
        buckets = {"30": times} if number % 2 else {"50": times}
        made.append(
            step(
                number, rows=times, processed=times * tokens, phases=phases, micro_batches=times, length_buckets=buckets
            )
        )
    return made


def facts(device_gib=16, kept=10_000, positions=50, **arguments):
    given = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, **arguments}
    return {
        "settings": settings(arguments=given, device={"type": "cpu", "memory_bytes": device_gib * GIB}),
        "memory": memory(positions, activations=kept),
    }


def test_accumulation_beside_idle_memory_is_found_with_what_larger_micro_batches_save(tmp_path):
    found = accumulation(case_in(tmp_path, accumulated(), facts=facts()))
    assert "accumulates 8 micro-batches of 1 row, 60% of whose time" in found.title
    best = found.remedies[0]
    assert (
        best.overrides["train.per_device_train_batch_size"] * best.overrides["train.gradient_accumulation_steps"] == 8
    )
    # Without padding: 0.06 / 8 + 0.04 = 0.0475 of 0.1 s are left; the lengths differ by 5/3, so that some is padding.
    assert 0.4 < best.gain.share < 0.525
    assert found.cost.seconds == best.gain.seconds


def test_rows_of_one_length_have_no_padding_and_save_all(tmp_path):
    steps = accumulated()
    for one in steps:
        one["sequences"]["length_buckets"] = {}  # not known: as if packed
    found = accumulation(case_in(tmp_path, steps, facts=facts()))
    assert len(found.remedies) == 1
    assert found.remedies[0].overrides == {
        "train.per_device_train_batch_size": 8,
        "train.gradient_accumulation_steps": 1,
    }
    assert found.remedies[0].gain.share == pytest.approx(0.525)


def test_it_takes_no_more_rows_than_idle_memory_holds(tmp_path):
    # 16 GiB, a resident kilobyte: 12.8 GiB may be filled; three rows more of 2 * 2 GiB each are 12.
    found = accumulation(case_in(tmp_path, accumulated(), facts=facts(kept=2 * GIB)))
    assert {one.overrides["train.per_device_train_batch_size"] for one in found.remedies} == {4}


def test_full_memory_is_a_reason_to_accumulate(tmp_path):
    assert accumulation(case_in(tmp_path, accumulated(), facts=facts(kept=8 * GIB))) is None


def test_micro_batches_that_cost_little_by_themselves_are_no_finding(tmp_path):
    case = case_in(tmp_path, accumulated(fixed=0.0005), facts=facts())
    assert accumulation(case) is None
    assert accumulation(case_in(tmp_path, accumulated(), facts=facts(gradient_accumulation_steps=1))) is None


def test_it_abstains_where_memory_or_the_fixed_cost_is_not_known(tmp_path):
    unknown = facts()
    unknown.pop("memory")
    said = accumulation(case_in(tmp_path, accumulated(), facts=unknown))
    assert isinstance(said, Abstention)
    assert "memory" in said.why
    said = accumulation(case_in(tmp_path / "few", accumulated(count=4), facts=facts()))
    assert isinstance(said, Abstention)
    assert "cannot be told" in said.why
    assert isinstance(accumulation(case_in(tmp_path / "none", facts=facts())), Abstention)


def test_small_micro_batches_out_of_an_accumulation_are_told_once(tmp_path):
    assert small_micro_batch(case_in(tmp_path / "accumulated", accumulated(), facts=facts())) is None
    alone = case_in(tmp_path / "alone", accumulated(times=1), facts=facts(gradient_accumulation_steps=1))
    assert small_micro_batch(alone).rule == "small_micro_batch"
