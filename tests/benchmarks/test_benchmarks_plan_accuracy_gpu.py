"""The GPU's side of the plan's accuracy: its arithmetic by hand, and its training on a CPU."""

import io

import plan_accuracy_gpu as gpu
import pytest
from plan_accuracy import Case, recipe_of
from plan_accuracy_gpu import GPU_CASES
from plan_accuracy_gpu_real import measure
from rich.console import Console

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


def test_what_is_printed():
    assert gpu.line(compared("a")) == "  +0.0%   +20.0%   -10.0%  a"
    assert gpu.line(FAILED) == "    n/a      n/a      n/a  broken  FAILED: ['CUDA out of memory']"
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(gpu.table([compared("a"), FAILED]))
    first, second = (line.split() for line in console.export_text().splitlines()[1:3])
    assert first == [
        "a",
        "10.0",
        "/",
        "10.0",
        "+0.0%",
        "12.0",
        "/",
        "10.0",
        "+20.0%",
        "900.0",
        "/",
        "1,000.0",
        "-10.0%",
    ]
    assert second[:4] == ["broken", "10.0", "/", "n/a"]


def test_the_cases_are_those_that_were_promised(tmp_path):
    """24 or more: three methods, four models, checkpointing on and off, two kinds of attention."""
    assert len(GPU_CASES) >= 24
    assert len({case.name for case in GPU_CASES}) == len(GPU_CASES)
    assert {case.method for case in GPU_CASES} == {"full", "lora", "qlora"}
    assert len({case.model for case in GPU_CASES}) == 4
    assert {case.train["gradient_checkpointing"] for case in GPU_CASES} == {True, False}
    assert {case.attention for case in GPU_CASES} == {None, "eager"}
    for number, case in enumerate(GPU_CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert recipe_of(case, folder).train["max_length"] == case.length


def test_a_training_is_timed(tiny_llama_dir, tmp_path):
    case = Case("llama", "lora", 16, {"per_device_train_batch_size": 2, "gradient_checkpointing": False})
    found = measure(case, str(tiny_llama_dir), tmp_path, steps=2, warm_up=1)
    assert found["allocated_bytes"] is None
    assert found["tokens_per_second"] == pytest.approx(2 * 16 / found["step_seconds"])


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["plan_accuracy_gpu.py"])
    with pytest.raises(SystemExit, match=r"there is no CUDA device here"):
        gpu.main()
