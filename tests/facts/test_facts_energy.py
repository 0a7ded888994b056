"""The tables of grid intensities and of CPU power."""

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.facts.energy import cpu_power, grid_intensities, grid_intensity
from hf_efficient.facts.tables import rows


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


def test_a_figure_of_the_user_s_own():
    held = grid_intensity(120)
    assert (held.code, held.grams_per_kwh, held.year, held.date) == ("user", 120.0, None, None)


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf")])
def test_an_impossible_figure_is_refused(number):
    with pytest.raises(SetupError, match=r"gCO2e/kWh: write a number from 0, or a country\.$"):
        grid_intensity(number)


def test_an_unknown_region_is_refused_with_the_nearest():
    with pytest.raises(SetupError) as error:
        grid_intensity("Frnace")
    assert str(error.value).startswith("'Frnace' is no region with known figures. Did you mean France")
    assert str(error.value).endswith("Or give the number of gCO2e/kWh.")


def test_every_row_is_whole():
    held = grid_intensities()
    assert len({one.code for one in held}) == len(held) == 45
    for one in held:
        assert 20 < one.grams_per_kwh < 800
        assert one.year in (2022, 2023)
        assert one.read_at.startswith("https://")
        assert one.date == "2026-11-20"


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
