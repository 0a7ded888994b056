"""The fused head of a simulation takes what TRL's kernels take on a GPU."""

from __future__ import annotations

import pytest
from trl.kernels import chunked_logprob

from hf_efficient.errors import SetupError
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.simulation import planned_memory, simulate
from hf_efficient.planning.trainers import fused_kernels_of_a_gpu

ROWS, LENGTH, HIDDEN, VOCABULARY = 4, 64, 64, 96
TILE = 32768


@pytest.fixture
def simulated(recipe, saved):
    def build(loss_type, method="lora", train=None, **settings):
        fields = {"per_device_train_batch_size": ROWS, "loss_type": loss_type, **(train or {})}
        wanted = recipe(saved("llama"), method, fields)
        return simulate(wanted, model_config(wanted.model), LENGTH, **settings)

    return build


def flops(simulation):
    return sum(one.flops for one in simulation.operators)


def test_one_tile_in_two_bytes_is_all_that_is_held_of_the_logits(simulated):
    memory = planned_memory(simulated("chunked_nll"))
    assert memory.category_peak_bytes["logits"] == ROWS * (LENGTH - 1) * TILE * 2
    assert planned_memory(simulated("nll")).category_peak_bytes["logits"] > 2 * ROWS * LENGTH * VOCABULARY * 4


def test_on_a_cpu_a_smaller_tile_is_copied_several_times(simulated):
    """Of its columns there are as many as the vocabulary has entries."""
    positions = ROWS * (LENGTH - 1)

    def shapes(**settings):
        lives = simulated("chunked_nll", **settings).log.lives
        return [(life.shape, str(life.dtype)) for life in lives]

    on_cpu, on_gpu = shapes(on_gpu=False), shapes()
    assert on_cpu.count(((positions, VOCABULARY), "torch.float32")) > 10
    assert ((positions, 8192), "torch.bfloat16") in on_cpu
    assert ((positions, TILE), "torch.bfloat16") not in on_cpu
    assert ((positions, TILE), "torch.bfloat16") in on_gpu
    assert not [one for one in on_gpu if one[0][-1:] == (VOCABULARY,) and one[1] == "torch.float32"]


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize(("method", "passes"), [("lora", 2), ("full", 3)])
def test_the_head_is_computed_once_more(simulated, method, passes, on_gpu):
    """Beside forward and gradient of the inputs, and of the weight where that is trained."""
    head = 2 * HIDDEN * VOCABULARY
    whole, chunked = flops(simulated("nll", method)), flops(simulated("chunked_nll", method, on_gpu=on_gpu))
    # the last position of each row predicts nothing, and is left out
    assert chunked - whole == head * (ROWS * (LENGTH - 1) * (passes + 1) - ROWS * LENGTH * passes)


def test_products_into_float32_are_those_of_the_factors_type(simulated):
    found = [one for one in simulated("chunked_nll", "full").operators if one.name == "aten::addmm"]
    assert found
    assert {one.dtype for one in found} == {"bf16"}
    assert {one.family for one in found} == {"matmul"}


def test_nothing_of_trl_is_changed_afterwards(simulated):
    before = dict(vars(chunked_logprob))
    for on_gpu in (True, False):
        simulated("chunked_nll", on_gpu=on_gpu)
    assert {name for name, value in vars(chunked_logprob).items() if before.get(name) is not value} == set()


def test_another_trl_is_said_to_be_another(monkeypatch):
    monkeypatch.delattr(chunked_logprob, "_backward_kernel")
    with pytest.raises(SetupError, match=r"whose kernels are others \(_backward_kernel is gone\)"):
        fused_kernels_of_a_gpu(lambda tensor: None).__enter__()
