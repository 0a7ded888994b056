"""A run that ran out of memory."""

from __future__ import annotations

import dataclasses

import pytest

from hf_efficient.diagnosis.rules.memory import out_of_memory
from tests.diagnosis.cases import case_in, settings, step


def failed(case, error):
    return dataclasses.replace(case, account=dataclasses.replace(case.account, ended="error", error=error))


def test_the_exception_is_the_evidence_and_the_remedies_are_changes(tmp_path):
    arguments = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}
    stated = settings(
        arguments=arguments,
        model={"activation_checkpointing": False},
        device={"type": "cuda", "memory_bytes": 100},
    )
    case = case_in(tmp_path, [step(1)], facts={"settings": stated})
    found = out_of_memory(failed(case, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert found.severity == "critical"
    assert [one.value for one in found.evidence][1:] == [1, 100]
    assert [one.overrides for one in found.remedies] == [
        {},
        {"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 4},
        {"train.gradient_checkpointing": True},
    ]


def test_one_row_cannot_be_halved_and_checkpointing_is_not_proposed_twice(tmp_path):
    stated = settings(arguments={"per_device_train_batch_size": 1}, model={"activation_checkpointing": True})
    found = out_of_memory(failed(case_in(tmp_path, facts={"settings": stated}), "RuntimeError: CUDA out of memory"))
    assert [one.overrides for one in found.remedies] == [{}]


@pytest.mark.parametrize("error", ["ValueError: no", None])
def test_another_end_is_no_finding(tmp_path, error):
    assert out_of_memory(failed(case_in(tmp_path, [step(1)]), error)) is None
