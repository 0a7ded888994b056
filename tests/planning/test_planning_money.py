"""Money and energy of a planned run, on demand and spot."""

import dataclasses

import pytest
from planned_recipes import device, memory, tiny_recipe

from hf_efficient.estimate.sharding import ModelStates, Sharding
from hf_efficient.facts import prices as prices_module
from hf_efficient.facts.prices import Price, SpotTerms
from hf_efficient.planning.money import Terms, checkpoint_bytes, loss_remarks, terms_of, with_costs
from hf_efficient.planning.plan import plan
from hf_efficient.planning.simulation import Rank
from hf_efficient.recipe.schema import CostSection
from hf_efficient.records.plan import PlannedGpu

TIMED = PlannedGpu(
    "Toy", 2**32, 2**32, 2**31, 2**31, True, 0, 3.0, 1000 / 3, {"math": 1.0}, ["a note"], run_seconds=3600.0
)
ENDLESS = dataclasses.replace(TIMED, run_seconds=None)
TERMS = Terms(CostSection(price_usd_per_hour=3.6, grid=500.0), SpotTerms(10.0, 720.0, 100.0), 1000, 10**9)


def offer(provider, market, usd, name="Toy"):
    return Price(provider, name, market, usd, 1, "it", "https://a", "https://b", "2026-11-20")


@pytest.fixture(autouse=True)
def _offers(monkeypatch, request):
    if "tmp_path" in request.fixturenames:  # a recipe's own prices, which name real providers
        return
    held = [
        offer("dear", "on_demand", 4.0),
        offer("cheap", "on_demand", 2.0),
        offer("cheap", "spot", 1.0),
        offer("dear", "spot", 1.5),
        offer("other", "on_demand", 0.1, "Other"),
    ]
    monkeypatch.setattr(prices_module, "prices", lambda: held)


def costs(gpu=TIMED, name="Toy", **changes):
    named = dataclasses.replace(gpu, name=name)
    said = {key: changes.pop(key) for key in ("price_usd_per_hour", "price_from", "market") if key in changes}
    terms = dataclasses.replace(TERMS, cost=TERMS.cost.model_copy(update=said), **changes)
    return with_costs(named, device(4096, name=name, tdp_watts=360.0), terms)


def test_money_and_energy():
    """3 s at 3.60 USD/h: 0.003 USD for 1000 tokens. 1200 steps: an hour at 360 W, 500 g/kWh; 1.2 million tokens."""
    found = costs()
    assert found.usd_per_million_tokens == pytest.approx(3.0)
    assert found.run_seconds == pytest.approx(3600.0)
    assert found.run_usd == pytest.approx(3.6)
    assert found.run_kwh == pytest.approx(0.36)
    assert found.run_co2e_grams == pytest.approx(180.0)
    assert found.kwh_per_million_tokens == pytest.approx(0.3)
    assert found.co2e_grams_per_million_tokens == pytest.approx(150.0)
    assert (found.market, found.price_source, found.notes) == ("on_demand", "cost.price_usd_per_hour", ["a note"])
    assert found.spot is None


def test_saves_are_of_the_run_and_not_of_its_tokens():
    """Three saves of 1 GB at 100 MB/s: 30 s beside the hour of work, at 3.60 USD/h and 360 W."""
    found = costs(saves=3)
    assert (found.run_saving_seconds, found.run_seconds) == (pytest.approx(30.0), pytest.approx(3630.0))
    assert found.run_usd == pytest.approx(3.63)
    assert found.run_kwh == pytest.approx(0.363)
    assert found.run_co2e_grams == pytest.approx(181.5)
    assert found.usd_per_million_tokens == pytest.approx(3.0)
    assert (costs(saves=0).run_saving_seconds, costs(saves=0).run_seconds) == (0.0, pytest.approx(3600.0))
    unknown = costs(saves=None)
    assert (unknown.run_saving_seconds, unknown.run_seconds) == (None, pytest.approx(3600.0))
    assert costs(ENDLESS, saves=3).run_saving_seconds is None


def test_what_a_failure_undoes_and_what_auto_makes_of_it():
    """Three saves of 10 s in 1200 steps of 3 s: half of 1200 s and of a save, 605 s, where failures are rare. With one
    in 10 h Daly's interval is 842 s, 281 steps; an hour has five of them."""
    rare = dataclasses.replace(TERMS, saves=3, failures=(1e6, ""))
    assert loss_remarks([TIMED], rare, 1200) == ["a failure undoes about 10 min 05 s (estimated, with one in 1e+06 h)"]
    auto = {"auto": True, "failures": (10.0, "a guess"), "saves": 1}
    slow = dataclasses.replace(TIMED, step_seconds=30.0)
    terms, tight = dataclasses.replace(TERMS, **auto), dataclasses.replace(TIMED, fits=False, step_seconds=1.0)
    assert loss_remarks([TIMED, slow, tight], terms, None) == [
        "train.save_steps: auto saves after 28 to 281 steps; a failure undoes about 7 min 03 s to 7 min 05 s "
        "(estimated, with one in 10 h, a guess: checkpoints.hours_between_failures changes that)"
    ]
    assert terms.interval_seconds(3.0, 100) == 300.0  # no longer than the run
    assert costs(**auto).run_saving_seconds == pytest.approx(50.0)
    assert loss_remarks([TIMED], TERMS, 1200) == []  # no save


@pytest.mark.parametrize("market", ["on_demand", "spot"])
def test_spot_counts_its_own_saves_alone(market):
    """3766.1 s, as without those of the recipe."""
    found = costs(price_usd_per_hour=None, market=market, saves=3)
    assert found.spot.run_seconds == pytest.approx(3766.1, abs=0.1)
    if market == "spot":
        assert found.run_seconds == pytest.approx(found.spot.run_seconds)
        assert found.run_saving_seconds is None


def test_prices_that_are_not_known():
    found = costs(name="New", price_usd_per_hour=None)
    assert (found.price_usd_per_hour, found.usd_per_million_tokens, found.run_usd, found.spot) == (None,) * 4
    assert found.run_seconds == pytest.approx(3600.0)
    assert found.run_kwh == pytest.approx(0.36)
    assert found.notes == ["a note", "no price of it is known: set cost.price_usd_per_hour to what you pay"]
    found = costs(name="Other", price_usd_per_hour=None, market="spot")
    assert (found.price_usd_per_hour, found.run_usd, found.spot.run_usd) == (None, None, None)
    assert found.run_seconds == pytest.approx(3766.1, abs=0.1)
    assert found.notes[-1].startswith("no spot price of it is known")


def test_the_list_price_that_counts():
    found = costs(price_usd_per_hour=None)
    assert (found.price_usd_per_hour, found.price_source) == (2.0, "cheap, 2026-11-20")
    assert (found.spot.price_usd_per_hour, found.spot.price_source) == (1.0, "cheap, 2026-11-20")
    found = costs(price_usd_per_hour=None, price_from="Dear")
    assert (found.price_usd_per_hour, found.spot.price_usd_per_hour) == (4.0, 1.5)
    nobody = costs(price_usd_per_hour=None, price_from="other")
    assert (nobody.price_usd_per_hour, nobody.spot) == (None, None)
    assert nobody.notes[-1].startswith("no price of it from other is known")


def test_the_users_own_list_price_comes_first(monkeypatch):
    held = [*prices_module.prices(), dataclasses.replace(offer("mine", "on_demand", 2.5), own=True, date="")]
    monkeypatch.setattr(prices_module, "prices", lambda: held)
    found = costs(price_usd_per_hour=None)
    assert (found.price_usd_per_hour, found.price_source) == (2.5, "your own prices: mine")
    assert found.spot.price_source == "cheap, 2026-11-20"
    assert costs(price_usd_per_hour=None, price_from="cheap").price_usd_per_hour == 2.0


def test_spot_beside_and_in_place_of_the_price_on_demand():
    """10 s to save 1 GB, 36,000 s between preemptions: Daly's interval is 842 s, 281 steps of 3 s.

    So 1200 steps are 4 pieces of 843 s and one of 228 s, and 36,000 e^0.02 (4 (e^(853 / 36000) - 1) + e^(238 / 36000)
    - 1) = 3766.1 s are paid.
    """
    spot = costs(price_usd_per_hour=None).spot
    assert (spot.checkpoint_bytes, spot.checkpoint_seconds, spot.save_every_steps) == (10**9, 10.0, 281)
    assert spot.hours_between_preemptions == 10.0
    assert spot.run_seconds == pytest.approx(3766.1, abs=0.1)
    assert spot.run_usd == pytest.approx(3766.1 / 3600, abs=1e-4)
    assert spot.preemptions == pytest.approx(0.10461, abs=1e-5)
    assert spot.overhead_share == pytest.approx(0.04614, abs=1e-5)
    assert spot.usd_per_million_tokens == pytest.approx(spot.run_usd / 1.2)
    assert spot.reason is None
    found = costs(price_usd_per_hour=None, market="spot")
    spot = found.spot
    assert (found.market, found.price_usd_per_hour) == ("spot", 1.0)
    assert found.run_seconds == pytest.approx(spot.run_seconds)
    assert found.run_usd == pytest.approx(spot.run_usd)
    assert found.usd_per_million_tokens == pytest.approx(spot.usd_per_million_tokens)
    assert found.run_kwh == pytest.approx(0.36 * (1 + spot.overhead_share))
    assert found.step_seconds == 3.0
    # 281 steps of 3 s and a save: 36,000 e^0.02 (e^(853 / 36000) - 1) / 843 = 1.0446.
    spot = costs(ENDLESS, price_usd_per_hour=None).spot
    assert spot.overhead_share == pytest.approx(0.04463, abs=1e-5)
    assert spot.usd_per_million_tokens == pytest.approx(1.04463 * 3 / 3600 * 1000, abs=1e-4)
    assert (spot.preemptions, spot.run_seconds, spot.run_usd) == (None, None, None)


def test_a_run_that_would_hardly_ever_end():
    """1 TB takes 10,000 s to save, where machines last 1 h."""
    hopeless = {"checkpoint_bytes": 10**12, "spot": SpotTerms(1.0, 720.0, 100.0)}
    found = costs(price_usd_per_hour=None, market="spot", **hopeless)
    assert (found.run_seconds, found.run_usd, found.usd_per_million_tokens) == (None, None, None)
    assert found.notes[-1].startswith("on spot machines it would hardly ever end: 10000 s to save are too long")
    beside = costs(price_usd_per_hour=None, **hopeless)
    assert beside.run_usd == pytest.approx(2.0)
    assert beside.spot.reason.startswith("10000 s to save")
    assert beside.spot.run_usd is None


def test_several_devices():
    """A list price is of each; what the user pays is of all. Each draws 360 W for an hour."""
    listed, paid = costs(devices=4, price_usd_per_hour=None), costs(devices=4)
    assert (listed.price_usd_per_hour, paid.price_usd_per_hour) == (8.0, 3.6)
    assert listed.run_usd == pytest.approx(8.0)
    assert listed.spot.price_usd_per_hour == 4.0
    assert paid.run_kwh == pytest.approx(4 * 0.36)
    assert paid.kwh_per_million_tokens == pytest.approx(4 * 0.3)


HELD = dataclasses.replace(
    memory(weights=1000, adapter=20, optimizer_state=40, activations=500), model_bytes=1020, paged_bytes=3
)


@pytest.mark.parametrize(("method", "held"), [("full", 1020 + 40 + 3), ("lora", 20 + 40 + 3), ("qlora", 20 + 40 + 3)])
def test_a_save_holds_what_is_trained_and_its_state(method, held):
    assert checkpoint_bytes(HELD, method) == held


def test_terms_of_a_recipe(tmp_path):
    found = terms_of(tiny_recipe(tmp_path), HELD, 100)
    assert (found.tokens, found.checkpoint_bytes) == (100, 63)
    assert len(found.spot.assumed) == 3
    said = ("cost.spot.hours_between_preemptions=6", "cost.spot.write_mb_per_second=500")
    found = terms_of(tiny_recipe(tmp_path, *said), HELD, 100)
    assert (found.spot.hours_between_preemptions, found.spot.write_mb_per_second) == (6, 500)
    assert found.spot.assumed == ("300 s until the next one trains (assumed, not measured)",)
    made = tiny_recipe(tmp_path, "cost.spot.write_mb_per_second=500")
    found = terms_of(made, dataclasses.replace(HELD, paged_bytes=10**9 - 60), 100, saves=2)
    assert (found.saves, found.save_seconds) == (2, 2.0)


@pytest.mark.parametrize(("strategy", "paged"), [("ddp", 3), ("zero3", 4 * 3), ("fsdp2", 4 * 3)])
def test_a_save_of_several_ranks_holds_the_shares_of_all(tmp_path, strategy, paged):
    """Of 100 trained values 2 bytes, 8 of moments and 4 of the optimizer's own copy, whatever one rank holds. Each rank
    pages 3 bytes: under DDP the same, else its own."""
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
