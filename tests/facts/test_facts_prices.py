"""Prices, spot machines, the carbon of grids and the power of CPUs: the tables, and what a run is charged."""

import datetime

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.facts import prices as prices_module
from hf_efficient.facts.prices import (
    Price,
    Rates,
    SpotTerms,
    cpu_power,
    grid_facts,
    grid_intensities,
    grid_intensity,
    price_facts,
    prices,
    spot_terms,
)
from hf_efficient.facts.tables import accelerators, rows


def test_the_largest_instance_that_is_not_too_large():
    """Instances of 1, 2, 4 and 8, which are rented whole: 3 GPUs are two pairs."""
    usd = {1: 4.29, 2: 2 * 4.19, 3: 4 * 4.19, 4: 4 * 4.09, 7: 8 * 4.09, 8: 8 * 3.99, 16: 16 * 3.99}
    found = {gpus: price_facts(Rates(price_from="Lambda"), H100, gpus)["price_usd_per_hour"] for gpus in usd}
    assert found == pytest.approx(usd)


def test_a_provider_without_the_accelerator_is_refused():
    with pytest.raises(SetupError) as error:
        price_facts(Rates(price_from="aws"), "Tesla T4", 1)
    assert str(error.value) == (
        "price_from: aws has no known on_demand price for T4; known: A100 40GB SXM (on_demand), A100 80GB SXM "
        "(on_demand), H100 SXM (on_demand). Set cost.price_usd_per_hour to what you pay."
    )


def test_every_price_is_whole():
    names = {one.name for one in accelerators()}
    for offer in prices():
        assert offer.accelerator in names
        assert offer.market in ("on_demand", "spot")
        assert 0.1 < offer.usd_per_gpu_hour < 20
        assert offer.source.startswith("https://") or offer.provider in ("aws", "azure")
        assert offer.read_at.startswith("https://")
        assert datetime.date(2026, 8, 1) <= datetime.date.fromisoformat(offer.date) <= datetime.date(2026, 11, 20)


H100 = "NVIDIA H100 80GB HBM3"


def test_what_the_user_pays_is_taken_as_it_is():
    facts = price_facts(Rates(price_usd_per_hour=2), H100, 8)
    assert facts == {"price_usd_per_hour": 2.0, "source": "set by the user", "estimated": False}
    assert price_facts(Rates(price_usd_per_hour=0), None, 1)["price_usd_per_hour"] == 0.0


def test_a_providers_list_price_times_the_gpus():
    """Lambda rents H100s at 4.29 alone and at 4.19 in pairs."""
    assert price_facts(Rates(price_from="lambda"), H100, 1)["price_usd_per_hour"] == 4.29
    facts = price_facts(Rates(price_from="Lambda"), H100, 2)
    assert facts == {
        "price_usd_per_hour": 8.38,
        "source": "lambda's on-demand list price of 2026-09-20, $4.19 per GPU-hour of H100 SXM, 2 GPUs",
        "estimated": False,
    }


def test_an_instance_is_rented_whole():
    """AWS rents H100s by the eight, at 6.88 each."""
    facts = price_facts(Rates(price_from="aws"), H100, 1)
    assert facts["price_usd_per_hour"] == pytest.approx(55.04)
    assert facts["source"].endswith("1 of 8 GPUs rented")
    assert price_facts(Rates(price_from="aws"), H100, 9)["price_usd_per_hour"] == pytest.approx(16 * 6.88)


def test_a_run_on_spot():
    facts = price_facts(Rates(price_from="gcp", market="spot"), H100, 1)
    assert facts["price_usd_per_hour"] == 6.571
    assert facts["source"].startswith("gcp's spot list price of 2026-09-26")


def test_without_a_word_it_is_the_median_of_the_list_prices(monkeypatch):
    held = [
        Price(provider, gpu, market, usd, 1, "", "", "", date)
        for provider, gpu, market, usd, date in (
            ("a", "H100 SXM", "on_demand", 2.0, "2026-01-02"),
            ("b", "H100 SXM", "on_demand", 9.0, "2026-03-04"),
            ("c", "H100 SXM", "on_demand", 3.0, "2026-01-02"),
            ("c", "H100 SXM", "spot", 0.1, "2026-01-02"),
            ("c", "H200", "on_demand", 0.1, "2026-01-02"),
        )
    ]
    monkeypatch.setattr(prices_module, "prices", lambda: held)
    assert price_facts(Rates(), H100, 4) == {
        "price_usd_per_hour": 12.0,
        "source": "median of 3 on-demand list prices per GPU-hour of H100 SXM ($2 to $9) of 2026-01-02 to 2026-03-04, "
        "4 GPUs",
        "estimated": True,
    }
    spot = price_facts(Rates(market="spot"), H100, 2)
    assert spot["price_usd_per_hour"] == pytest.approx(0.2)
    assert spot["source"] == "the one known spot list price per GPU-hour of H100 SXM ($0.1) of 2026-01-02, 2 GPUs"


REMEDY = "set cost.price_usd_per_hour in the recipe, or Rates(price_usd_per_hour=...)"


@pytest.mark.parametrize(
    ("rates", "device", "reason"),
    [
        (Rates(), None, f"no price is known of a machine without a GPU; {REMEDY}"),
        (
            Rates(price_from="aws"),
            None,
            f"no price is known of a machine without a GPU, and aws's prices are of GPUs; {REMEDY}",
        ),
        (Rates(market="spot"), "NVIDIA A10", f"no spot list price of A10 is known; {REMEDY}"),
        (Rates(), "GPU of tomorrow", f"no list price of GPU of tomorrow is known; {REMEDY}"),
    ],
)
def test_a_price_that_nobody_knows_has_a_reason_and_a_remedy(rates, device, reason):
    facts = price_facts(rates, device, 1)
    assert facts == {"price_usd_per_hour": None, "source": None, "estimated": False, "reason": reason}


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("NVIDIA H200", "price_from: lambda has no known on_demand price for H200; known: A10 (on_demand), "),
        ("GPU of tomorrow", "price_from: no list price of GPU of tomorrow is known. Write price_usd_per_hour instead"),
    ],
)
def test_a_gpu_that_the_provider_does_not_list_is_an_error(device, message):
    with pytest.raises(SetupError) as error:
        price_facts(Rates(price_from="lambda"), device, 1)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"price_usd_per_hour": -1}, "price_usd_per_hour: is -1; write dollars per hour, from 0."),
        ({"price_usd_per_hour": float("inf")}, "price_usd_per_hour: is inf; write dollars"),
        ({"price_usd_per_hour": 1, "price_from": "aws"}, "price_from: is set, and so is price_usd_per_hour."),
        ({"price_from": "lamda"}, "'lamda' is no provider with known figures. Did you mean lambda?"),
        ({"market": "sopt"}, "market: is 'sopt'; write on_demand or spot."),
        ({"grid": "Frnace"}, "'Frnace' is no region with known figures. Did you mean France"),
    ],
)
def test_rates_are_checked_when_they_are_made(settings, message):
    with pytest.raises(SetupError) as error:
        Rates(**settings)
    assert str(error.value).startswith(message)


def test_the_grid():
    assert grid_facts(Rates()) == {"grams_per_kwh": 481.0, "source": "World 2023, Ember, July 2024"}
    assert grid_facts(Rates(grid="NO"))["source"].startswith("Norway 2023, https://ourworldindata.org/")
    assert grid_facts(Rates(grid=120)) == {"grams_per_kwh": 120.0, "source": "set by the user"}


def test_the_tables_figures_say_whose_they_are():
    found = spot_terms()
    assert (found.hours_between_preemptions, found.restart_seconds, found.write_mb_per_second) == (2.1, 300, 131)
    assert found.assumed == (
        "a machine is taken away every 2.1 h on average (AWS V100s in April 2023)",
        "300 s until the next one trains (assumed, not measured)",
        "checkpoints are written at 131 MB/s (an AWS gp3 volume)",
    )


def test_what_the_user_says_is_not_assumed():
    assert spot_terms(6.0, 0.0, 1000.0) == SpotTerms(6.0, 0.0, 1000.0, ())
    assert (spot_terms().write_of, spot_terms(write_mb_per_second=1.0).write_of) == ("an AWS gp3 volume", None)
    assert spot_terms(hours_between_preemptions=6.0).assumed == spot_terms().assumed[1:]


def test_every_spot_term_is_whole():
    for row in rows("spot"):
        assert row["value"] > 0
        assert row["source"].startswith("https://") or row["figure"] == "restart"
        assert row["note"]
        assert isinstance(row["date"], datetime.date)


@pytest.mark.parametrize(
    ("region", "code", "grams", "year"),
    [
        ("world", "world", 481, 2023),
        ("FR", "FR", 56.039, 2023),
        ("uk", "GB", 237.589, 2023),
        ("USA", "US", 369.473, 2023),
        ("Iceland", "IS", 27.68, 2022),
    ],
)
def test_a_region(region, code, grams, year):
    held = grid_intensity(region)
    assert (held.code, held.grams_per_kwh, held.year) == (code, grams, year)


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf")])
def test_an_impossible_figure_is_refused(number):
    with pytest.raises(SetupError, match=r"gCO2e/kWh: write a number from 0, or a country\.$"):
        grid_intensity(number)


def test_every_row_is_whole():
    held = grid_intensities()
    assert len({one.code for one in held}) == len(held) == 45
    for one in held:
        assert 20 < one.grams_per_kwh < 800
        assert one.year in (2022, 2023)
    for row in rows("grid"):
        assert row["read_at"].startswith("https://")
        assert str(row["date"]) == "2026-11-20"


def test_the_mean_of_the_providers():
    """(0.74 + 0.71 + 0.78) / 3 and (3.5 + 4.26 + 3.76) / 3."""
    held = cpu_power()
    assert (held.min_watts, held.max_watts) == (pytest.approx(0.743333, abs=1e-6), pytest.approx(3.84))
    assert held.source == "Cloud Carbon Footprint, mean of aws, gcp, azure, read 2026-11-20"


def test_every_row_says_where_it_is_from():
    for row in rows("cpu_power"):
        assert 0 < row["min_watts"] < row["max_watts"]
        assert row["source"].startswith("https://www.cloudcarbonfootprint.org/docs/methodology")
        assert row["read_at"].endswith("microsite/docs/Methodology.md")
