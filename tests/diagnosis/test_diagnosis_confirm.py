"""A second run held against the prediction of the first."""

from __future__ import annotations

import dataclasses

import pytest

from hf_efficient.diagnosis.confirmation import MeasuredRun, asked_of, confirm, measured_run, prediction
from hf_efficient.diagnosis.engine import diagnose_case
from hf_efficient.recipe.schema import ConfirmsSection
from hf_efficient.records.findings import Abstention, Finding, Gain, Remedy
from tests.diagnosis.cases import case_in, settings, step

SETUP = {"model": "tiny", "data": "a.jsonl", "processes": "1", "device": "cpu"}
ASKED = ConfirmsSection(
    rule="data_transform", run="out", predicted_saving=0.4, seconds_per_token=0.01, spread=0.03, setup=SETUP
)
RUN = MeasuredRun(0.006, 0.04, None, SETUP)
RECIPE = """\
recipe:
  name: chats
  method: sft
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


def finding(severity="warning"):
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


def test_a_gain_that_the_spread_hides_is_neither():
    held = only(run=dataclasses.replace(RUN, seconds_per_token=0.009, spread=0.5))  # 10% +- 45%
    assert held.verdict == "unknown"
    assert "more steps would tell" in held.why


@pytest.mark.parametrize(
    ("asked", "run", "why"),
    [
        ({"seconds_per_token": None}, {}, "the first run has no count of the time and tokens"),
        ({}, {"seconds_per_token": None}, "this run has no count of the time and tokens"),
        ({"spread": None}, {}, "the first run has too few steps"),
        ({}, {"spread": None}, "this run has too few steps"),
        ({}, {"setup": {**SETUP, "model": "big"}}, "this run differs from the first one in its model (big, not tiny)"),
        (
            {},
            {"setup": {**SETUP, "data": "b.jsonl", "processes": "2"}},
            "in its data (b.jsonl, not a.jsonl) and its processes (2, not 1)",
        ),
        (
            {"setup": {**SETUP, "train.save_steps": "50", "train.bf16": "True"}},
            {"setup": {**SETUP, "train.save_steps": "2", "train.optim": "sgd"}},
            "save_steps (2, not 50) and its train.bf16 (unset, not True) and its train.optim (sgd, not unset)",
        ),
    ],
)
def test_where_it_cannot_be_told_it_says_why(asked, run, why):
    held = only(ASKED.model_copy(update=asked), dataclasses.replace(RUN, **run))
    assert held.verdict == "unknown"
    assert why in held.why


def test_what_only_one_of_the_runs_knows_keeps_nothing_from_being_compared():
    assert only(run=dataclasses.replace(RUN, setup={"model": "tiny", "adapter": "lora"})).verdict == "confirmed"


@pytest.mark.parametrize(
    ("peak", "verdict", "achieved"),
    [
        (700, "confirmed", 300),
        (900, "smaller", 100),
        (100, "larger", 900),
        (1000, "retracted", 0),
        (1100, "retracted", -100),
    ],
)
def test_memory_is_held_against_the_peak(peak, verdict, achieved):
    asked = ConfirmsSection(rule="logits_spike", predicted_bytes=400, peak_bytes=1000)
    held = only(asked, dataclasses.replace(RUN, peak_bytes=peak))
    assert (held.of, held.verdict, held.achieved, held.spread) == ("memory", verdict, achieved, None)


def test_time_and_memory_are_told_apart():
    asked = ASKED.model_copy(update={"predicted_bytes": 400, "peak_bytes": None})
    assert [(one.of, one.verdict) for one in confirm(asked, RUN)] == [("time", "confirmed"), ("memory", "unknown")]


@pytest.mark.parametrize(
    ("said", "verdict", "why"),
    [
        ({}, "confirmed", ""),
        ({"findings": [finding("info")]}, "confirmed", "what is left of the finding is no more than info"),
        ({"findings": [finding()]}, "retracted", "the finding is still there"),
        ({"findings": [finding("critical")], "is_short": True}, "retracted", "the finding is still there"),
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
    assert asked_of({"efficiency.confirms.rule": "saves_cost", "efficiency.confirms.predicted_saving": 7}) is None


def test_a_run_is_measured_without_its_warm_up_but_with_its_pauses(tmp_path):
    phases = {"forward": 1.0}
    steps = [step(1, phases={"forward": 9.0}, non_padding=200)]
    steps += [step(n, phases=phases, non_padding=200) for n in range(2, 4)]
    steps += [step(n, phases={**phases, "checkpointing": 2.0 if n == 5 else 4.0} if n in (5, 9) else phases,
                   non_padding=200) for n in range(4, 12)]  # fmt: skip
    facts = {"settings": settings(host={"cores": 2})}
    found = measured_run(case_in(tmp_path, steps, facts=facts, recipe=RECIPE, memory={"peak_rss_bytes": 5000}))
    # 9 + 10 + 6 s for 11 * 200 tokens; 8 steady steps of 1 s without spread, pauses of 2 and 4 s.
    assert found.seconds_per_token == pytest.approx(25 / 2200)
    assert found.spread == pytest.approx(2.365 * 2 / 14)
    assert found.peak_bytes == 5000
    assert found.setup == {
        "method": "sft",
        "model": "tiny",
        "adapter": "lora",
        "data": "a.jsonl train, b.jsonl train",
        "processes": "1",
        "device": "cpu, 2 cores",
        "train.save_steps": "2",
        "train.accelerator_config.split_batches": "True",
    }


def test_an_epoch_that_starts_is_a_pause(tmp_path):
    def one(n):
        turn = {"start_seconds": 1.0, "first_wait_seconds": 3.0} if n in (5, 9) else {}
        wait = 4.0 if n in (5, 9) else 0.0
        return step(n, phases={"forward": 1.0, "data_wait": wait}, loader={"batches": 1, "wait_seconds": wait, **turn})

    assert measured_run(case_in(tmp_path, [one(n) for n in range(1, 12)])).spread == pytest.approx(0, abs=1e-12)


def remedy(gain=None, **overrides):
    return Remedy("change it", overrides or {"train.save_steps": 50}, "", gain)


def test_the_prediction_is_written_with_what_it_is_held_against(tmp_path):
    case = case_in(tmp_path, [step(n) for n in range(1, 12)], recipe=RECIPE)
    told = prediction(case, finding(), remedy(Gain(0.25, 3.0, 700, None, "")))
    assert told["rule"] == "data_transform"
    assert told["run"] == "out/run"
    assert (told["predicted_saving"], told["predicted_bytes"]) == (0.25, 700)
    assert (told["seconds_per_token"], told["peak_bytes"]) == (pytest.approx(1 / 400), 1000)
    assert told["spread"] == pytest.approx(0, abs=1e-12)
    assert ConfirmsSection.model_validate(told).setup["model"] == "tiny"


def test_what_the_remedy_changes_need_not_be_alike(tmp_path):
    case = case_in(tmp_path, [step(n) for n in range(1, 12)], recipe=RECIPE)
    told = prediction(case, finding(), remedy(**{"adapter.method": "lora", "distributed.strategy": "ddp"}))
    assert {"method", "model", "data", "processes", "device"} == {
        name for name in told["setup"] if not name.startswith("train.")
    }
    assert "seconds_per_token" not in told


def test_what_the_remedy_sets_must_be_set(tmp_path):
    case = case_in(tmp_path, [step(n) for n in range(1, 12)], recipe=RECIPE)
    change = remedy(**{"train.save_steps": 50, "train.learning_rate": 1e-3, "train.accelerator_config": {"even": True}})
    told = prediction(case, finding(), change)["setup"]
    assert {name: value for name, value in told.items() if name.startswith("train.")} == {
        "train.save_steps": "50",
        "train.accelerator_config.split_batches": "True",
        "train.accelerator_config.even": "True",
    }


def test_a_remark_without_a_figure_is_nothing_to_confirm(tmp_path):
    case = case_in(tmp_path, [step(1)], recipe=RECIPE)
    assert prediction(case, finding("info"), remedy()) is None
    assert prediction(case, finding("info"), remedy(Gain(None, None, None, 3.0, ""))) is None
    assert prediction(case, finding("info"), remedy(Gain(0.1, 1.0, None, None, ""))) is not None


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


def test_a_run_that_tests_nothing_has_none(tmp_path):
    assert diagnose_case(case_in(tmp_path, [step(1)], recipe=RECIPE)).confirmations == []
