"""What a recipe says of money."""

from __future__ import annotations

import dataclasses

import pytest
from planned_recipes import memory, tiny_recipe

from hf_efficient.estimate.sharding import ModelStates, Sharding
from hf_efficient.planning.money import checkpoint_bytes, terms_of
from hf_efficient.planning.plan import plan
from hf_efficient.planning.simulation import Rank

HELD = dataclasses.replace(
    memory(weights=1000, adapter=20, optimizer_state=40, activations=500), model_bytes=1020, paged_bytes=3
)


@pytest.mark.parametrize(("method", "held"), [("full", 1020 + 40 + 3), ("lora", 20 + 40 + 3), ("qlora", 20 + 40 + 3)])
def test_a_save_holds_what_is_trained_and_its_state(method, held):
    assert checkpoint_bytes(HELD, method) == held


def test_a_save_without_state():
    assert checkpoint_bytes(dataclasses.replace(memory(weights=10), model_bytes=10), "full") == 10


def test_what_the_recipe_leaves_open(tmp_path):
    found = terms_of(tiny_recipe(tmp_path), HELD, 100)
    assert (found.price_usd_per_hour, found.provider, found.market) == (None, None, "on_demand")
    assert (found.tokens, found.checkpoint_bytes, found.grid_grams_per_kwh) == (100, 63, 481)
    assert len(found.spot.assumed) == 3


def test_what_the_recipe_says(tmp_path):
    made = tiny_recipe(
        tmp_path,
        "efficiency.market=spot",
        "efficiency.price_from=gcp",
        "efficiency.grid=100",
        "efficiency.spot.hours_between_preemptions=6",
        "efficiency.spot.write_mb_per_second=500",
    )
    found = terms_of(made, HELD, 100)
    assert (found.provider, found.market, found.grid_grams_per_kwh) == ("gcp", "spot", 100)
    assert (found.spot.hours_between_preemptions, found.spot.write_mb_per_second) == (6, 500)
    assert found.spot.assumed == ("300 s until the next one trains (assumed, not measured)",)


@pytest.mark.parametrize(("strategy", "paged"), [("ddp", 3), ("zero3", 4 * 3), ("fsdp2", 4 * 3)])
def test_a_save_of_several_ranks_holds_the_shares_of_all(tmp_path, strategy, paged):
    """Of 100 trained values 2 bytes, 8 of moments and 4 of the optimizer's own copy, whatever one rank holds.

    Each rank pages 3 bytes: under DDP the same, else its own.
    """
    rank = Rank(Sharding(strategy, 4), ModelStates(100, 900, 2, 2, 2, 8, master_bytes=4), layers=1)
    found = terms_of(tiny_recipe(tmp_path), HELD, 100, rank)
    assert (found.checkpoint_bytes, found.devices) == (1400 + paged, 4)


def test_paged_state_is_saved_by_several_ranks_as_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = tiny_recipe(tmp_path, "adapter.method=full", "train.optim=paged_adamw_8bit")
    alone, both = (plan(made, ["H100 SXM"], num_gpus=number) for number in (1, 2))
    assert alone.memory.paged_bytes > 0
    frequencies = 2 * 16 * 4  # of the rotary embedding, which are no weights
    assert both.gpus[0].spot.checkpoint_bytes == alone.gpus[0].spot.checkpoint_bytes - frequencies


def test_the_time_of_a_save(tmp_path):
    made = tiny_recipe(tmp_path, "efficiency.spot.write_mb_per_second=500")
    found = terms_of(made, dataclasses.replace(HELD, paged_bytes=10**9 - 60), 100, saves=2)
    assert (found.saves, found.save_seconds) == (2, 2.0)
