"""An evaluation simulated, against transformers' own evaluation loop on a real model."""

from __future__ import annotations

import pytest
from plan_accuracy_real import real_peak

from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.planning.trainers import is_evaluated

LARGE = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 16}


@pytest.fixture
def evaluated(recipe):
    """A recipe with data to evaluate on."""

    def build(*args, metrics=(), at_end=True, fraction=None, **kwargs):
        built = recipe(*args, **kwargs)
        data = {"eval_fraction": fraction} if fraction else {"eval": built.data.train}
        return built.model_copy(
            update={
                "data": built.data.model_copy(update=data),
                "evaluate": built.evaluate.model_copy(update={"metrics": list(metrics), "at_end": at_end}),
            }
        )

    return build


@pytest.mark.parametrize("metrics", [(), ("perplexity", "token_accuracy")])
@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_its_peak_is_the_real_ones(evaluated, saved, method, metrics):
    wanted = evaluated(saved("llama"), method, LARGE, metrics=metrics)
    config = model_config(wanted.model)
    memory = planned_memory(simulate(wanted, config, 64))
    assert memory.peak_phase == "evaluation"
    assert memory.peak_allocated_bytes == pytest.approx(real_peak(wanted, config, 64), rel=0.02)


def test_what_was_evaluated(evaluated, saved):
    wanted = evaluated(saved("llama"), "lora", LARGE)
    config = model_config(wanted.model)
    found = simulate(wanted, config, 64, evaluation_length=32)
    assert (found.evaluation.rows, found.evaluation.length, found.evaluation.positions) == (16, 32, 512)
    assert found.second_step < found.evaluation.start
    assert len(found.forward_ends) == len(found.backward_starts)
    flops = sum(one.flops for one in found.evaluation.operators)
    # by hand: two per weight of a matrix and position, adapters of rank 16 included; scores and values of the
    # attention, half of which the causal mask leaves out
    matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160) + 96 * 64
    adapters = 2 * 16 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 160))
    attention = 2 * 2 * 2 * 16 * 32 * 32 * 64 // 2
    assert flops == 2 * 512 * (matrices + adapters) + attention
    assert simulate(wanted, config, 64).evaluation.length == 64


def test_training_is_what_it_is_without_one(evaluated, recipe, saved):
    with_one = simulate(evaluated(saved("llama"), "lora", LARGE), model_config(recipe(saved("llama")).model), 64)
    without = simulate(recipe(saved("llama"), "lora", LARGE), model_config(recipe(saved("llama")).model), 64)
    assert without.evaluation is None
    assert with_one.operators == without.operators
    training = dict(planned_memory(with_one).phase_peak_allocated_bytes)
    del training["evaluation"]
    assert training == planned_memory(without).phase_peak_allocated_bytes


@pytest.mark.parametrize(
    ("fields", "train", "expected"),
    [
        ({}, {}, True),
        ({"at_end": False}, {}, False),
        ({"at_end": False}, {"eval_strategy": "steps"}, True),
        ({"at_end": False}, {"eval_on_start": True}, True),
        ({"fraction": 0.1}, {}, True),
    ],
)
def test_whether_a_run_evaluates(evaluated, fields, train, expected):
    assert is_evaluated(evaluated(train=train, **fields)) == expected


def test_without_data_nothing_is_evaluated(recipe):
    assert not is_evaluated(recipe(train={"eval_strategy": "steps"}))
