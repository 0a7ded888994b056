"""Every strategy trains as one process does: real launches of two processes on the CPU."""

import json
import shutil

import pytest
from parity import (
    REFERENCE,
    STRATEGIES,
    TOLERANCES,
    compared,
    launch,
    losses_of,
    make_inputs,
    run_strategy,
    trainings_of,
    write_recipe,
)

pytestmark = pytest.mark.slow

STEPS = 50
NEEDS_COMPILER = ("zero1", "zero2", "zero3", "zero3+offload")
"""DeepSpeed builds its operators for the CPU when they are first used."""


@pytest.fixture(autouse=True)
def _compiler(request):
    strategy = request.node.callspec.params.get("strategy") if hasattr(request.node, "callspec") else None
    if strategy in NEEDS_COMPILER and shutil.which("c++") is None:
        pytest.skip("no C++ compiler here, and DeepSpeed builds its operators for the CPU with one")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The inputs, and the losses of one process."""
    made = tmp_path_factory.mktemp("parity")
    make_inputs(made)
    run_strategy(REFERENCE, made, STEPS)
    return made


@pytest.mark.parametrize("strategy", [one for one in STRATEGIES if one != REFERENCE])
def test_the_losses_of_a_strategy_are_those_of_one_process(folder, strategy):
    run_strategy(strategy, folder, STEPS)
    losses = losses_of(strategy, folder)
    assert sorted(losses) == sorted(trainings_of(strategy))
    assert all(len(series) == STEPS for series in losses.values())
    rows = compared(strategy, losses, losses_of(REFERENCE, folder))
    assert [row for row in rows if not row.holds] == []


@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])  # which shard the head
def test_the_loss_without_whole_logits_is_the_same_under_a_strategy(folder, strategy, tmp_path):
    recipe = write_recipe(strategy, "full-fp32", folder, max_steps=STEPS)
    launch([recipe], folder, [f"output_dir={tmp_path / 'run'}", "train.loss_type=chunked_nll"])
    losses = _losses(tmp_path / "run")
    assert len(losses) == STEPS
    assert losses == pytest.approx(losses_of(REFERENCE, folder)["full-fp32"], rel=1e-5)


def test_a_difference_beyond_the_tolerance_does_not_hold():
    (row,) = compared("ddp", {"full-fp32": [2.0, 1.0]}, {"full-fp32": [2.0, 1.0001]})
    assert (row.method, row.precision, row.holds) == ("full", "fp32", False)
    assert row.worst == pytest.approx(0.0001 / 1.0001)
    (row,) = compared("ddp", {"full-bf16": [2.0, 1.0]}, {"full-bf16": [2.0, 1.0001]})
    assert row.holds
    assert set(TOLERANCES) == {"fp32", "bf16"}


@pytest.mark.parametrize(("strategy", "relative"), [("ddp", 0.0), ("zero2", 1e-6), ("zero3", 1e-6), ("fsdp2", 1e-6)])
def test_a_run_that_is_resumed_goes_on_as_the_one_that_was_not_interrupted(tmp_path, strategy, relative):
    make_inputs(tmp_path)
    recipe = write_recipe(strategy, "lora-fp32", tmp_path, max_steps=8, save_strategy="steps", save_steps=4)
    launch([recipe], tmp_path)
    whole, parts = tmp_path / strategy / "lora-fp32", tmp_path / "parts"
    shutil.copytree(whole, parts)
    shutil.rmtree(parts / "checkpoint-8")
    launch([recipe], tmp_path, [f"output_dir={parts}", "existing_output=resume"])
    one, other = (_losses(path) for path in (whole, parts))
    assert len(one) == 8
    assert other == pytest.approx(one, rel=relative, abs=0.0)
    segments = [json.loads(line) for line in (parts / "efficiency/steps.jsonl").read_text().splitlines()]
    assert [(record["segment"], record["step"]) for record in segments[8:]] == [(1, 5), (1, 6), (1, 7), (1, 8)]
    assert (parts / "adapter_model.safetensors").is_file()


def _losses(run):
    history = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]
