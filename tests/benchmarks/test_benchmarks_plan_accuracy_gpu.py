"""The GPU's side of the plan's accuracy: its arithmetic by hand, and its training on a CPU."""

import plan_accuracy_gpu as gpu
import pytest
from plan_accuracy import Case
from plan_accuracy_gpu_real import measure

GIB = 2**30


def compared(name, allocated=(10, 10), reserved=(12, 10), speed=(900, 1000)):
    sides = [dict(zip(gpu.MEASURES, values, strict=True)) for values in zip(allocated, reserved, speed, strict=True)]
    predicted, measured = (
        {**side, "allocated_bytes": side["allocated_bytes"] * GIB, "reserved_bytes": side["reserved_bytes"] * GIB}
        for side in sides
    )
    return {"name": name, "predicted": predicted, "measured": measured, "failed": None}


FAILED = {**compared("broken"), "measured": None, "failed": ["CUDA out of memory"]}


def test_errors_by_hand():
    found = [compared("a"), compared("b", allocated=(9, 10)), compared("c", allocated=(11, 10)), FAILED]
    assert [gpu.error(one, "allocated_bytes") for one in found] == [0, pytest.approx(-0.1), pytest.approx(0.1), None]
    told = gpu.summary(found)
    assert told["allocated_bytes"] == {
        "cases": 3,
        "median_error": pytest.approx(0.1),
        "worst_error": pytest.approx(0.1),
    }
    assert told["reserved_bytes"]["median_error"] == pytest.approx(0.2)
    assert told["tokens_per_second"]["worst_error"] == pytest.approx(0.1)
    assert gpu.summary([FAILED])["allocated_bytes"] == {"cases": 0, "median_error": None, "worst_error": None}


def test_a_training_is_timed(tiny_llama_dir, tmp_path):
    case = Case("llama", "lora", 16, {"per_device_train_batch_size": 2, "gradient_checkpointing": False})
    found = measure(case, str(tiny_llama_dir), tmp_path, steps=2, warm_up=1)
    assert found["allocated_bytes"] is None
    assert found["tokens_per_second"] == pytest.approx(2 * 16 / found["step_seconds"])
