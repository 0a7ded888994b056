from __future__ import annotations

from hf_efficient.diagnosis.rules.batching import LargerMicroBatch, larger_micro_batch


def test_rows_come_out_of_the_accumulation_first():
    overrides = {"train.per_device_train_batch_size": 16, "train.gradient_accumulation_steps": 2}
    assert larger_micro_batch(1, 32, 16) == LargerMicroBatch(16, 1.0, overrides, "activations of more rows")


def test_what_the_accumulation_does_not_hold_is_said():
    found = larger_micro_batch(2, 1, 4)
    assert found.growth == 4.0
    assert found.overrides == {"train.per_device_train_batch_size": 8}
    assert "4 times the examples" in found.costs
