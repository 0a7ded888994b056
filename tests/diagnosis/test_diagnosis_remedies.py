"""A remedy as a recipe file, and what became of its prediction in the run that tests it."""

import dataclasses

import pytest
import yaml

from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.diagnosis.remedies import (
    MeasuredRun,
    applied_recipe,
    asked_of,
    confirm,
    measured_run,
    prediction,
    remedy_of,
    with_global_batch,
)
from hf_efficient.errors import OutputError
from hf_efficient.recipe.schema import ConfirmsSection
from hf_efficient.records.findings import Abstention, Diagnosis, Finding, Gain, Remedy
from tests.diagnosis.made import case_in, settings, step

RESOLVED = """\
recipe:
  name: chats
  model: {id: tiny, dtype: auto}
  data: {train: [{path: a.jsonl, weight: 1.0}], eval: []}
  train: {max_steps: 100, save_steps: 2}
  output_dir: out/run
  existing_output: overwrite
provenance:
  name: recipe.yaml:1
  model.id: recipe.yaml:2
  data.train.0.path: recipe.yaml:4
  train.max_steps: 'command line: train.max_steps=100'
  train.save_steps: recipe.yaml:6
  output_dir: recipe.yaml:7
  existing_output: 'command line: --overwrite'
environment: {}
"""
CODE = Remedy("move the work out of the collator")
CHANGE = Remedy("save every 50 steps", {"train.save_steps": 50, "train.save_strategy": "steps"})


def finding(rule, *remedies):
    return Finding(rule, "too many checkpoints", "warning", "measured", [], remedies=list(remedies))


def diagnosis(*findings):
    return Diagnosis(1, "0", "done", None, 5, 10.0, list(findings), [], None, [])


def test_the_recipe_keeps_what_was_set_and_takes_the_change(tmp_path):
    (tmp_path / "recipe.resolved.yaml").write_text(RESOLVED)
    text = applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE)
    assert text.startswith("# too many checkpoints: save every 50 steps.")
    assert yaml.safe_load(text) == {
        "name": "chats", "model": {"id": "tiny"}, "data": {"train": [{"path": "a.jsonl", "weight": 1.0}]},
        "train": {"max_steps": 100, "save_steps": 50, "save_strategy": "steps"}, "output_dir": "out/run-saves-cost",
    }  # fmt: skip


def test_a_run_without_a_recipe_is_told_its_arguments(tmp_path):
    with pytest.raises(OutputError, match=r"TrainingArguments: save_steps=50, save_strategy=steps"):
        applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE)


def test_the_first_remedy_that_changes_a_recipe_is_taken():
    found = diagnosis(finding("collator", CODE), finding("saves", CODE, CHANGE))
    assert remedy_of(found, None) == (found.findings[1], CHANGE)
    assert remedy_of(found, 2)[1] is CHANGE


@pytest.mark.parametrize(
    ("found", "number", "told"),
    [
        (diagnosis(), None, "nothing to change"),
        (diagnosis(), 1, "--finding: 1 is no finding of this run: there is none"),
        (diagnosis(finding("a", CHANGE)), 2, "--finding: 2 is no finding of this run: there are 1"),
        (diagnosis(finding("a", CODE)), None, "not fixed in the recipe"),
        (diagnosis(finding("a", CODE), finding("b", CHANGE)), 1, "finding 1 is not fixed in the recipe"),
    ],
)
def test_where_there_is_nothing_to_apply_it_says_so(found, number, told):
    with pytest.raises(OutputError, match=told):
        remedy_of(found, number)


def test_what_is_to_be_confirmed_goes_in_and_what_was_is_over(tmp_path):
    own = "  cost: {grid: France}\n  efficiency: {confirms: {rule: old}}\n"
    keys = "  cost.grid: r.yaml:8\n  efficiency.confirms.rule: r.yaml:9\n"
    text = RESOLVED.replace("  output_dir: out", f"{own}  output_dir: out")
    text = text.replace("  output_dir: r", f"{keys}  output_dir: r")
    (tmp_path / "recipe.resolved.yaml").write_text(text)
    asked = {"rule": "saves_cost", "predicted_saving": 0.4, "setup": {"model": "tiny"}}
    held = yaml.safe_load(applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE, asked))
    assert (held["cost"], held["efficiency"]) == ({"grid": "France"}, {"confirms": asked})
    held = yaml.safe_load(applied_recipe(tmp_path, finding("saves_cost", CHANGE), CHANGE))
    assert held["cost"] == {"grid": "France"}
    assert "efficiency" not in held


def test_what_was_derived_is_derived_again(tmp_path):
    held = yaml.safe_load(RESOLVED)
    held["recipe"]["train"]["gradient_accumulation_steps"] = 4
    held["recipe"]["distributed"] = {"global_batch_size": 64}
    held["provenance"] |= {
        "train.gradient_accumulation_steps": "derived: distributed.global_batch_size / (...)",
        "distributed.global_batch_size": "recipe.yaml:9",
    }
    (tmp_path / "recipe.resolved.yaml").write_text(yaml.safe_dump(held))
    change = Remedy("larger steps", {"train.gradient_accumulation_steps": 8, "distributed.global_batch_size": 128})
    made = yaml.safe_load(applied_recipe(tmp_path, finding("small_steps", change), change))
    assert made["train"] == {"max_steps": 100, "save_steps": 2}
    assert made["distributed"] == {"global_batch_size": 128}


NAMED = "recipe: {name: t, distributed: {global_batch_size: 64}}\nprovenance: {}\n"
ROWS, ACCUMULATION = "train.per_device_train_batch_size", "train.gradient_accumulation_steps"


def overrides(folder, change, recipe=NAMED):
    """Of a run of 2 rows, accumulated 4 times (on 8 processes), after ``change``."""
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    case = case_in(folder, facts={"settings": settings(arguments=arguments)}, recipe=recipe)
    finding = Finding("r", "t", "warning", "likely", [], remedies=[Remedy("x", change)])
    return with_global_batch(finding, case).remedies[0].overrides


@pytest.mark.parametrize(
    ("change", "batch"),
    [({ACCUMULATION: 8}, 128), ({ROWS: 8, ACCUMULATION: 1}, None), ({ROWS: 1}, 32), ({"train.packing": True}, None)],
)
def test_another_batch_is_said(tmp_path, change, batch):
    expected = change if batch is None else {**change, "distributed.global_batch_size": batch}
    assert overrides(tmp_path, change) == expected


SETUP = {"model": "tiny", "data": "a.jsonl", "processes": "1", "device": "cpu"}
ASKED = ConfirmsSection(
    rule="data_transform", run="out", predicted_saving=0.4, seconds_per_token=0.01, spread=0.03, setup=SETUP
)
RUN = MeasuredRun(0.006, 0.04, None, SETUP)
RECIPE = """\
recipe:
  name: chats
  objective: sft
  model: {id: tiny, revision: null}
  data: {train: [{path: a.jsonl, split: train}, {path: b.jsonl, split: train}]}
  train: {max_steps: 9, warmup_steps: 2, save_steps: 2, accelerator_config: {split_batches: true}}
  adapter: {method: lora}
  output_dir: out/run
provenance: {}
environment: {}
"""


def only(asked=ASKED, run=RUN, **more):
    (held,) = confirm(asked, run, **more)
    return held


def taking(seconds):
    return dataclasses.replace(RUN, seconds_per_token=seconds)


def slow_transform(severity="warning"):
    return Finding("data_transform", "the transform is slow", severity, "measured", [])


@pytest.mark.parametrize(
    ("seconds", "verdict", "why"),
    [
        (0.006, "confirmed", ""),  # 40% of 40%
        (0.0085, "smaller", "less than half of it"),
        (0.0015, "larger", "more than twice as much"),
        (0.0098, "retracted", "no difference beyond the spread"),
        (0.012, "retracted", "it takes more than before"),
    ],
)
def test_the_time_for_a_token_decides(seconds, verdict, why):
    held = only(run=taking(seconds))
    assert (held.of, held.rule, held.run, held.predicted) == ("time", "data_transform", "out", 0.4)
    assert held.achieved == pytest.approx(1 - seconds / 0.01)
    assert held.spread == pytest.approx(seconds / 0.01 * 0.05)
    assert (held.verdict, held.why) == (verdict, why)


OTHER_DATA = {**SETUP, "data": "b.jsonl", "processes": "2"}
ASKED_FIELDS = {**SETUP, "train.save_steps": "50", "train.bf16": "True"}
OTHER_FIELDS = {**SETUP, "train.save_steps": "2", "train.optim": "sgd"}
FIELDS_DIFFER = "save_steps (2, not 50) and its train.bf16 (unset, not True) and its train.optim (sgd, not unset)"


@pytest.mark.parametrize(
    ("asked", "run", "why"),
    [
        ({"seconds_per_token": None}, {}, "the first run has no count of the time and tokens"),
        ({}, {"seconds_per_token": None}, "this run has no count of the time and tokens"),
        ({"spread": None}, {}, "the first run has too few steps"),
        ({}, {"spread": None}, "this run has too few steps"),
        ({}, {"setup": {**SETUP, "model": "big"}}, "this run differs from the first one in its model (big, not tiny)"),
        ({}, {"setup": OTHER_DATA}, "in its data (b.jsonl, not a.jsonl) and its processes (2, not 1)"),
        ({"setup": ASKED_FIELDS}, {"setup": OTHER_FIELDS}, FIELDS_DIFFER),
    ],
)
def test_where_it_cannot_be_told_it_says_why(asked, run, why):
    held = only(ASKED.model_copy(update=asked), dataclasses.replace(RUN, **run))
    assert held.verdict == "unknown"
    assert why in held.why


PEAKS = {700: "confirmed", 900: "smaller", 100: "larger", 1000: "retracted", 1100: "retracted"}


@pytest.mark.parametrize(("peak", "verdict"), PEAKS.items())
def test_memory_is_held_against_the_peak(peak, verdict):
    asked = ConfirmsSection(rule="logits_spike", predicted_bytes=400, peak_bytes=1000)
    held = only(asked, dataclasses.replace(RUN, peak_bytes=peak))
    assert (held.of, held.verdict, held.achieved, held.spread) == ("memory", verdict, 1000 - peak, None)


@pytest.mark.parametrize(
    ("said", "verdict", "why"),
    [
        ({}, "confirmed", ""),
        ({"findings": [slow_transform("info")]}, "confirmed", "what is left of the finding is no more than info"),
        ({"findings": [slow_transform()]}, "retracted", "the finding is still there"),
        ({"findings": [slow_transform("critical")], "is_short": True}, "retracted", "the finding is still there"),
        ({"is_short": True}, "unknown", "this run has too few steps"),
        ({"abstentions": [Abstention("data_transform", "no loader")]}, "unknown", "the rule abstains: no loader"),
        ({"abstentions": [Abstention("saves_cost", "no loader")]}, "confirmed", ""),
    ],
)
def test_a_remedy_that_predicts_no_figure_is_held_against_its_finding(said, verdict, why):
    held = only(ConfirmsSection(rule="data_transform"), **said)
    assert (held.of, held.verdict, held.why) == ("finding", verdict, why)


def test_what_a_recipe_asks_is_read_from_its_values():
    values = {"name": "chats", **{f"efficiency.confirms.{key}": value for key, value in ASKED.model_dump().items()}}
    del values["efficiency.confirms.setup"]
    values |= {f"efficiency.confirms.setup.{key}": value for key, value in SETUP.items()}
    assert asked_of(values) == ASKED
    assert asked_of({"name": "chats", "efficiency.confirms": None}) is None


def test_a_run_is_measured_without_its_warm_up_but_with_its_pauses(tmp_path):
    pauses = {5: {"checkpointing": 2.0}, 9: {"checkpointing": 4.0}, 1: {"forward": 9.0}}
    steps = [step(n, phases={"forward": 1.0, **pauses.get(n, {})}, non_padding=200) for n in range(1, 12)]
    facts = {"settings": settings(host={"cores": 2})}
    found = measured_run(case_in(tmp_path, steps, facts=facts, recipe=RECIPE, memory={"peak_rss_bytes": 5000}))
    # 9 + 10 + 6 s for 11 * 200 tokens; 8 steady steps of 1 s without spread, pauses of 2 and 4 s.
    assert found.seconds_per_token == pytest.approx(25 / 2200)
    assert found.spread == pytest.approx(2.3646 * 2 / 14, rel=1e-4)
    assert found.peak_bytes == 5000
    assert found.setup == {
        "objective": "sft", "model": "tiny", "adapter": "lora", "data": "a.jsonl train, b.jsonl train",
        "processes": "1", "device": "cpu, 2 cores", "train.save_steps": "2",
        "train.accelerator_config.split_batches": "True",
    }  # fmt: skip


def remedy(gain=None, **overrides):
    return Remedy("change it", overrides or {"train.save_steps": 50}, "", gain)


def test_the_prediction_is_written_with_what_it_is_held_against(first_run):
    told = prediction(first_run, slow_transform(), remedy(Gain(0.25, 3.0, 700, None, "")))
    assert (told["rule"], told["run"]) == ("data_transform", "out/run")
    assert (told["predicted_saving"], told["predicted_bytes"]) == (0.25, 700)
    assert (told["seconds_per_token"], told["peak_bytes"]) == (pytest.approx(1 / 400), 1000)
    assert told["spread"] == pytest.approx(0, abs=1e-12)
    assert ConfirmsSection.model_validate(told).setup["model"] == "tiny"


@pytest.fixture
def first_run(tmp_path):
    return case_in(tmp_path, [step(n) for n in range(1, 12)], recipe=RECIPE)


def test_what_the_remedy_changes_need_not_be_alike_and_what_it_sets_must_be_set(first_run):
    told = prediction(first_run, slow_transform(), remedy(**{"adapter.method": "lora", "distributed.strategy": "ddp"}))
    names = {name for name in told["setup"] if not name.startswith("train.")}
    assert names == {"objective", "model", "data", "processes", "device"}
    assert "seconds_per_token" not in told
    change = remedy(**{"train.save_steps": 50, "train.learning_rate": 1e-3, "train.accelerator_config": {"even": True}})
    told = prediction(first_run, slow_transform(), change)["setup"]
    assert {name: value for name, value in told.items() if name.startswith("train.")} == {
        "train.save_steps": "50",
        "train.accelerator_config.split_batches": "True",
        "train.accelerator_config.even": "True",
    }


def test_the_diagnosis_of_the_second_run_holds_it(tmp_path):
    asks = """\
  efficiency:
    confirms: {rule: saves_cost, run: out, predicted_saving: 0.4, seconds_per_token: 0.005, spread: 0.0,
               setup: {model: tiny, train.save_steps: '2', train.accelerator_config.split_batches: 'True'}}
"""
    recipe = RECIPE.replace("  output_dir", f"{asks}  output_dir")
    found = diagnose_case(case_in(tmp_path, [step(n) for n in range(1, 12)], recipe=recipe))
    (held,) = found.confirmations  # 1 s for 400 tokens
    assert (held.verdict, held.achieved) == ("confirmed", pytest.approx(0.5))
    assert found.faults == []
