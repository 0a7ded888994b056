"""What electricity emits by country (``data/grid.yaml``), and what a CPU draws where nothing measures it."""

import functools
import math
import statistics
from dataclasses import dataclass

from hf_efficient.errors import SetupError
from hf_efficient.facts.tables import plain, rows, unknown


@dataclass(frozen=True)
class GridIntensity:
    """The mean of a country's electricity over a year, in grams of CO2e per kWh generated, over its life cycle.
    ``code`` is ISO 3166-1 alpha-2, ``world``, or ``user`` for a figure given by number, which has no year."""

    code: str
    name: str
    grams_per_kwh: float
    year: int | None
    source: str
    aliases: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1)
def grid_intensities() -> tuple[GridIntensity, ...]:
    held = []
    for row in rows("grid"):
        grams, aliases = float(row["grams_per_kwh"]), tuple(row.get("aliases", ()))
        held.append(GridIntensity(row["code"], row["name"], grams, row["year"], row["source"], aliases))
    return tuple(held)


def grid_intensity(region: str | float) -> GridIntensity:
    """The intensity of a region: ``FR``, ``France``, ``UK``, ``world``, or a number of gCO2e/kWh of the user's own.
    Raises ``SetupError``: no region has that name (names the nearest), or the number is negative or not finite."""
    if isinstance(region, (int, float)):
        if not (math.isfinite(region) and region >= 0):
            raise SetupError(f"A grid intensity of {region} gCO2e/kWh: write a number from 0, or a country.")
        return GridIntensity("user", "set by the user", float(region), None, "the user")
    for held in grid_intensities():
        if plain(region) in map(plain, (held.code, held.name, *held.aliases)):
            return held
    raise unknown("region", region, (held.name for held in grid_intensities()), "Or give the number of gCO2e/kWh.")


@dataclass(frozen=True)
class CpuPower:
    """Power of a server for each of its virtual CPUs (hardware threads): idle, and at full load."""

    min_watts: float
    max_watts: float
    source: str


@functools.lru_cache(maxsize=1)
def cpu_power() -> CpuPower:
    """The mean over the providers of ``data/cpu_power.yaml``: a machine does not say which of them it is like."""
    held = rows("cpu_power")
    providers = ", ".join(row["provider"] for row in held)
    return CpuPower(
        min_watts=statistics.fmean(row["min_watts"] for row in held),
        max_watts=statistics.fmean(row["max_watts"] for row in held),
        source=f"Cloud Carbon Footprint, mean of {providers}, read {max(str(row['date']) for row in held)}",
    )
