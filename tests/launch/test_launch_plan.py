"""The plan of a run: made before its model is loaded, stored, compared, and never in its way."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from pydantic import TypeAdapter

from hf_efficient.accounting.account import SCHEMA, account_of
from hf_efficient.errors import SetupError
from hf_efficient.facts.tables import accelerator
from hf_efficient.launch import records as plans
from hf_efficient.launch.records import plan_before
from hf_efficient.launch.run import run_recipe
from hf_efficient.planning import plan as run_plan
from hf_efficient.records.account import RunAccount
from hf_efficient.records.plan import PlannedGpu, PlannedRanks, RunPlan
from tests.conftest import logged_values
from tests.launch.notes import Notes


@pytest.fixture
def recipe(tiny_recipe):
    own = ("efficiency.plan=true", "train.max_steps=3", "data.eval_fraction=null", "evaluate.metrics=[]")
    return lambda *overrides: tiny_recipe(*own, *overrides)


def account(output: Path) -> RunAccount:
    folder = output / "efficiency"
    jsonschema.validate(json.loads((folder / "run.json").read_text()), json.loads(SCHEMA.read_text()))
    return account_of(folder)


def stored(output: Path) -> RunPlan:
    return TypeAdapter(RunPlan).validate_json((output / "efficiency/plan.json").read_bytes())


WAYS = [
    ["adapter={method: full}", "train.gradient_accumulation_steps=2", "train.gradient_checkpointing=true",
     "train.optim=adafactor"],
    ["adapter={method: qlora, r: 4}", "train.padding_free=true", "train.max_length=null",
     "train.per_device_train_batch_size=3"],
    ["adapter.dropout=0.1"],
    ["adapter.modules_to_save=[lm_head]", "train.packing=true", "train.optim=sgd"],
]  # fmt: skip


@pytest.mark.parametrize("way", [*WAYS[:2], *(pytest.param(one, marks=pytest.mark.slow) for one in WAYS[2:])])
def test_what_was_planned_is_what_the_run_counts(way, recipe, tmp_path):
    run_recipe(recipe(*way))
    found = account(tmp_path / "out")
    assert found.time.phase_seconds["planning"] > 0
    whole = math.fsum(found.time.phase_seconds.values()) + found.time.unattributed_seconds
    assert whole == pytest.approx(found.time.wall_seconds, abs=1e-6)

    assert found.plan is not None
    figures = {figure.name: figure for figure in found.plan.figures}
    counted = {f"{one.name}_bytes": one.bytes for one in found.memory.categories if one.how == "exact" and one.bytes}
    assert {"weights_bytes", "gradients_bytes"} <= set(counted)
    for name, held in counted.items():
        assert (figures[name].predicted, figures[name].observed, figures[name].relative_error) == (held, held, 0.0)
    assert not any(name.startswith("peak_") for name in figures)  # nobody counts them on a CPU
    assert stored(tmp_path / "out").run.steps == found.plan.steps == found.steps.count == 3


@pytest.mark.slow
def test_activations_and_logits_of_the_largest_micro_batch(recipe, tmp_path):
    """One epoch of two rows each, all of which come: the largest is counted in the end."""
    run_recipe(recipe("train.max_steps=-1", "train.num_train_epochs=1"))
    found = account(tmp_path / "out")
    assert found.plan is not None
    assert found.steps.count == found.plan.steps == 12
    longest = max(int(bound) for bound in found.sequences.length_buckets)
    assert stored(tmp_path / "out").plan.row_tokens == found.sequences.longest_tokens <= longest
    figures = {figure.name: figure for figure in found.plan.figures}
    assert figures["logits_bytes"].relative_error == pytest.approx(0, abs=0.002)
    assert figures["activations_bytes"].relative_error == pytest.approx(0, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["adapter={method: full}", "adapter.dropout=0.1"])
def test_a_planned_run_takes_the_steps_of_an_unplanned_one(adapter, recipe, tmp_path):
    for name, plan in (("with", "true"), ("without", "false")):
        run_recipe(recipe(adapter, f"efficiency.plan={plan}", f"output_dir={tmp_path / name}"))
    assert logged_values(tmp_path / "with") == logged_values(tmp_path / "without")
    found = account(tmp_path / "without")
    assert found.plan is None
    assert "planning" not in found.time.phase_seconds
    assert not (tmp_path / "without/efficiency/plan.json").exists()
    assert "predictions" not in [gap.what for gap in found.not_measured]


def test_a_fault_in_the_planning_stops_nothing(recipe, tmp_path, monkeypatch, caplog):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(run_plan, "simulate_rank", broken)
    assert run_recipe(recipe()).steps == 3
    said = [record.message for record in caplog.records if "planned" in record.message]
    assert said == ["The run is not planned, because of a fault; it continues."]
    found = account(tmp_path / "out")
    assert found.plan is None
    told = {gap.what: gap.why for gap in found.not_measured}
    assert told["predictions"] == "the planning failed: ZeroDivisionError: planted"


@pytest.mark.slow
def test_preference_training_is_planned(recipe, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Say {i}.", "chosen": f" yes {i}", "rejected": f" no, never {i}"} for i in range(8)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run_recipe(recipe("objective=dpo", f"data.train=[{{path: {pairs}}}]"))
    figures = {one.name: one for one in account(tmp_path / "out").plan.figures}
    for name in ("weights_bytes", "adapter_bytes", "gradients_bytes", "optimizer_state_bytes"):
        assert figures[name].predicted == figures[name].observed, name
    told = json.loads((tmp_path / "out/efficiency/plan.json").read_text())["plan"]["data"]
    assert (told["examples"], told["evaluation_rows"], told["batchings"]) == (8, 0, [])


@pytest.mark.slow
def test_a_resumed_run_is_planned_as_before(recipe, tmp_path):
    run_recipe(recipe())
    before = (tmp_path / "out/efficiency/plan.json").read_text()
    run_recipe(recipe("existing_output=resume"))
    assert (tmp_path / "out/efficiency/plan.json").read_text() == before
    run_recipe(recipe("existing_output=resume", "train.max_steps=5"))
    found = account(tmp_path / "out")
    assert found.plan is not None
    assert (stored(tmp_path / "out").run.steps, found.plan.steps, found.steps.count) == (5, 5, 5)


def planned_for(planned: RunPlan, monkeypatch, notes=(), needed_bytes=2**35, ranks=None, **memory: int) -> None:
    """Let ``plan_run`` give this plan, on a T4 that it does not fit."""
    device = accelerator("T4")
    sizes = {"memory_bytes": device.memory_bytes, "usable_memory_bytes": device.usable_memory_bytes}
    known = {"name": device.name, **sizes, "needed_bytes": needed_bytes, "notes": list(notes)}
    known |= {"fits": False, "allocation_retries": 0, "bound_shares": {}}
    unfit = PlannedGpu(**{**{one.name: None for one in dataclasses.fields(PlannedGpu)}, **known})
    held = dataclasses.replace(planned.plan.memory, **memory)
    plan = dataclasses.replace(planned.plan, gpus=[unfit], memory=held, ranks=ranks)
    monkeypatch.setattr(plans, "plan_run", lambda *_: RunPlan(plan, dataclasses.replace(planned.run, fits=False)))


def test_what_does_not_fit_is_warned_of_and_refused_where_the_weights_alone_do_not(recipe, tmp_path, monkeypatch):
    made = recipe("train.max_steps=1")
    run_recipe(made)
    args = SimpleNamespace(process_index=0, deepspeed=None, fsdp=[])

    def warned(**changes):
        planned_for(stored(tmp_path / "out"), monkeypatch, **changes)
        notes = Notes()
        assert plan_before(made, args, None, None, notes) is not None
        ((title, said),) = notes.stages
        assert title == "Warning"
        return said

    assert warned() == (
        "it may run out of memory: planned for 32.00 GiB, and T4 has 14.56 GiB. "
        f"`hf-efficient plan {made.path} --advise` shows what would fit."
    )
    assert warned(notes=["no bfloat16"], needed_bytes=8 * 2**30) == "T4: no bfloat16"
    of_two = warned(ranks=PlannedRanks(2, "zero3", [], 0))
    assert of_two.startswith("it may run out of memory: planned for 32.00 GiB on each of 2 GPUs, and T4")
    with pytest.raises(SetupError, match=r"the weights alone are 20.00 GiB, and T4 has 14.56 GiB: .* --advise` shows"):
        warned(model_bytes=20 * 2**30)
