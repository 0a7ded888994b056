"""What a plan for several ranks says that it takes for granted."""

from __future__ import annotations

import pytest

from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks.rank import rank_remarks, simulate_rank


@pytest.fixture
def told(recipe, saved):
    def build(method="lora", processes=2, train=None, **distributed):
        distributed = {"processes": processes, **distributed}
        wanted = recipe(saved("llama"), method, train or {}, distributed=distributed)
        return " | ".join(rank_remarks(wanted, simulate_rank(wanted, model_config(wanted.model), 32)))

    return build


def test_ddp(told):
    found = told()
    assert found.startswith("DDP: each rank holds the whole model and a second copy of the gradients, in buckets")
    assert "communication is hidden behind computation as far as its order allows" in found


def test_zero(told):
    assert told(strategy="zero2").startswith("buckets of hidden_size^2 elements, as the launch sets them; the model is")


def test_quantized_weights(told):
    assert "quantized weights are whole on each rank: DeepSpeed does not" in told("qlora", strategy="zero3")
    assert "that takes bnb_4bit_quant_storage" in told("qlora", strategy="fsdp2")
    assert "quantized" not in told("lora", strategy="zero3")
    # embedding, head and norms, 2 * 96 * 64 + 5 * 64, in 2 bytes; 86,016 weights in half a byte
    assert "the whole model in the host's memory, 66.6 KiB for each of 2 processes" in told("qlora", strategy="fsdp2")


def test_an_optimizer_that_does_not_run(told):
    assert "bitsandbytes issue 1633" in told(strategy="fsdp2", train={"optim": "adamw_8bit"})
    assert "1633" not in told(strategy="zero2", train={"optim": "adamw_8bit"})


def test_more_ranks_than_rows(told):
    """A factor of 16 rows in each of 7 linear layers, twice."""
    assert "14 parameters have fewer rows than there are ranks" in told(strategy="fsdp2", processes=32)
    assert "32 GPUs exchange data as if all were in one machine" in told(strategy="fsdp2", processes=32)


def test_offload(told):
    assert "the optimizer's step on the host is not in the time" in told(
        strategy="zero2", offload={"optimizer": True}, train={"optim": "adamw_torch"}
    )


def test_auto(told):
    assert told(processes="auto") == "distributed.processes: auto is planned as one process; --num-gpus N plans N"
    assert told(processes=1) == ""
