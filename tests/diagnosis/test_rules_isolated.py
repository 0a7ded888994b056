"""Findings out of variants, each against a figure worked out by hand."""

import pytest

from hf_efficient.diagnosis.case import IsolatedRecipe
from hf_efficient.diagnosis.engine import diagnose_isolation
from hf_efficient.diagnosis.rules import ISOLATED_RULES
from hf_efficient.diagnosis.rules.batching import isolated_small_micro_batch as small_micro_batch
from hf_efficient.diagnosis.rules.data import isolated_few_workers as few_workers
from hf_efficient.diagnosis.rules.pauses import isolated_evaluations_cost as evaluations_cost
from hf_efficient.diagnosis.rules.pauses import isolated_logging_cost as logging_cost
from hf_efficient.diagnosis.rules.pauses import isolated_saves_cost as saves_cost
from hf_efficient.records.findings import Abstention
from hf_efficient.records.isolation import LoaderAlone, MicroBatchLine, PauseTimes
from tests.diagnosis.made import isolation, judged, part


def recipe(*parts, **changes):
    return IsolatedRecipe(isolation(*parts, **changes))


def test_a_recipe_whose_parts_are_the_model_has_no_finding_and_is_told_its_limit():
    found = diagnose_isolation(isolation(part("forward", 0.3), part("backward_optimizer", 0.65), part("data", 0.0)))
    assert found.findings == []
    assert "95% of a step is the model's own" in found.limit.text
    assert found.rules == [rule.__name__ for rule in ISOLATED_RULES]


def test_workers_hide_a_loader_that_waits():
    # loads of 0.45 s blocked and 0.05 s of CPU beside 0.5 s of computing on one core of four: one worker is enough
    found = few_workers(recipe(part("data", 0.5)))
    assert found.title == "50% of a step is waiting for the data loader, which loads in the process that trains"
    judged(found, overrides={"train.dataloader_num_workers": 1}, share=0.5, saves=500, saves_usd=0.5, cost=500)


@pytest.mark.parametrize("cores", [2, 1])
def test_workers_that_would_take_the_cores_of_the_training_are_not_promised(cores):
    busy = {"device": "cpu", "threads": cores, "cores": float(cores)}
    computes = LoaderAlone(0.5, None, 0.5, 0.5)  # all of it
    assert few_workers(recipe(part("data", 0.5), schedule=busy, loader=computes)).remedies == []


@pytest.mark.parametrize(
    ("rule", "name"),
    [(few_workers, "data"), (logging_cost, "logging"), (evaluations_cost, "evaluation"), (saves_cost, "checkpointing")],
)
def test_parts_that_are_small_or_absent_are_no_finding_and_unknown_ones_an_abstention(rule, name):
    assert rule(recipe()) is None
    assert rule(recipe(part(name, 0.02), pauses=PauseTimes(0.1, 0.1, 0.1))) is None
    said = rule(recipe(part(name, None, "pauses failed: no room")))
    assert said == Abstention(rule.__name__, f"{name}: pauses failed: no room")


def test_rarer_evaluations():
    # 10 s every 20 steps: half of the step; of 0.5 s of training 5%: 10 * 0.95 / (0.05 * 0.5) = 380 steps
    every = {"evaluate_every": 20, "best_at_end": True}
    found = evaluations_cost(recipe(part("evaluation", 0.5), schedule=every, pauses=PauseTimes(None, 10.0, None)))
    (remedy,) = found.remedies
    strategies = {"train.eval_strategy": "steps", "train.save_strategy": "steps"}
    assert remedy.overrides == {**strategies, "train.eval_steps": 380, "train.save_steps": 380}
    assert remedy.gain.share == pytest.approx(0.5 - 10 / 380)


def test_larger_micro_batches_out_of_the_accumulation():
    # 0.1 of 0.2 s is fixed: 16 times the rows make it 6% of their time; 4 of these come out of the accumulation
    line = MicroBatchLine(0.1, 0.001, 0.2, 100.0, 30, ["as_is", "micro_batch_doubled"])
    found = small_micro_batch(recipe(part("data", 0.1), micro_batch=line))
    (remedy,) = found.remedies
    assert remedy.overrides == {"train.per_device_train_batch_size": 32, "train.gradient_accumulation_steps": 1}
    # fixed 4 * 0.1 s once for 16, and what is neither compute nor data, 1 - 0.8 - 0.1, a quarter as often
    assert remedy.gain.share == pytest.approx(0.4 * 15 / 16 + 0.1 * 3 / 4)
    assert "4 times the examples" in remedy.costs
    assert found.cost.seconds == pytest.approx(400)


def test_a_gain_that_padding_would_eat_is_not_promised():
    line = MicroBatchLine(0.1, 0.001, 0.2, 100.0, 30, ["as_is", "micro_batch_doubled"], doubled_positions=1.2)
    (remedy,) = small_micro_batch(recipe(micro_batch=line)).remedies
    assert remedy.gain is None
    assert "1.20 times the positions" in remedy.costs


def test_the_dearest_finding_comes_first():
    pauses, every = PauseTimes(None, 20.0, 20.0), {"evaluate_every": 40, "save_every": 40}
    parts = [part("evaluation", 0.2), part("checkpointing", 0.3)]
    found = diagnose_isolation(isolation(*parts, schedule=every, pauses=pauses))
    assert [one.rule for one in found.findings] == ["saves_cost", "evaluations_cost"]
    assert found.limit is None
