"""Greenhouse gases of electricity by country (``facts/grid.yaml``)."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from hf_efficient.errors import SetupError
from hf_efficient.hardware.tables import plain, rows, unknown

__all__ = ["GridIntensity", "grid_intensities", "grid_intensity"]


@dataclass(frozen=True)
class GridIntensity:
    """The mean of a country's electricity over a year.

    Attributes:
        code: ISO 3166-1 alpha-2, ``world``, or ``user`` for a figure given by number.
        name: the country.
        grams_per_kwh: grams of CO2 equivalent per kilowatt-hour generated, over its life cycle.
        year: the year it holds for; None for a figure given by number.
        source: who states it.
        read_at: where it was read.
        date: the day it was read.
        aliases: other names that are understood.
    """

    code: str
    name: str
    grams_per_kwh: float
    year: int | None
    source: str
    read_at: str
    date: str | None
    aliases: tuple[str, ...] = ()


@functools.lru_cache(maxsize=1)
def grid_intensities() -> tuple[GridIntensity, ...]:
    """All that are known, in the order of the file."""
    return tuple(
        GridIntensity(
            **{
                **row,
                "grams_per_kwh": float(row["grams_per_kwh"]),
                "date": str(row["date"]),
                "aliases": tuple(row.get("aliases", ())),
            }
        )
        for row in rows("grid")
    )


def grid_intensity(region: str | float) -> GridIntensity:
    """The intensity of a region: ``FR``, ``France``, ``UK``, ``world``, or a number of gCO2e/kWh of the user's own.

    Raises:
        SetupError: no region has that name (names the nearest), or the number is negative or not finite.
    """
    if isinstance(region, (int, float)):
        if not (math.isfinite(region) and region >= 0):
            raise SetupError(f"A grid intensity of {region} gCO2e/kWh: write a number from 0, or a country.")
        return GridIntensity("user", "set by the user", float(region), None, "the user", "the user", None)
    for held in grid_intensities():
        if plain(region) in map(plain, (held.code, held.name, *held.aliases)):
            return held
    raise unknown("region", region, (held.name for held in grid_intensities()), "Or give the number of gCO2e/kWh.")
