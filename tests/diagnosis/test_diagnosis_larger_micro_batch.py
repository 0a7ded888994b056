from __future__ import annotations

from hf_efficient.diagnosis.rules.batching import LargerMicroBatch, larger_micro_batch


def test_rows_come_out_of_the_accumulation_first():
    # 0.5 of 1 s is fixed: over 4 times the rows 0.125 of 0.625 s is 20%, over 8 it is 11%, over 16 it is 6%
    assert larger_micro_batch(1, 32, 0.5, 1.0) == LargerMicroBatch(
        16,
        1.0,
        {"train.per_device_train_batch_size": 16, "train.gradient_accumulation_steps": 2},
        "activations of more rows",
    )


def test_what_the_accumulation_does_not_hold_is_said():
    found = larger_micro_batch(2, 1, 0.1, 0.5)  # 0.05 of 0.45 s is 11%, 0.025 of 0.425 is 6%
    assert (found.times, found.growth) == (4, 4.0)
    assert found.overrides == {"train.per_device_train_batch_size": 8}
    assert "4 times the examples" in found.costs
