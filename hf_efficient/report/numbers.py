"""Figures of the account in words, where ``units`` has none yet."""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["energies", "energy", "flops", "grams", "prices", "tokens_per_second", "usd"]


def usd(value: float) -> str:
    """Money, never negative: ``$1,234``, ``$12.34``, ``$0.500``, ``$0.0312``."""
    if value >= 1000:
        return f"${value:,.0f}"
    places = 2 if value >= 1 or value == 0 else min(2 - math.floor(math.log10(value)), 12)
    return f"${value:.{places}f}"


def energy(joules: float) -> str:
    """Energy: ``512 J``, ``3.42 Wh``, ``1.21 kWh``."""
    if joules < 1800:
        return f"{_three(joules)} J"
    hours = joules / 3600
    return f"{_three(hours)} Wh" if hours < 999.5 else f"{_three(hours / 1000)} kWh"


def grams(value: float) -> str:
    """A mass: ``0.84 g``, ``12.1 kg``."""
    return f"{_three(value)} g" if value < 999.5 else f"{_three(value / 1000)} kg"


def flops(value: float) -> str:
    """A count of operations, or a rate of them without its ``/s``: ``1.23 TFLOP``."""
    scaled, unit = float(value), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if scaled < 999.5:
            break
        scaled, unit = scaled / 1000, larger
    return f"{_three(scaled)} {unit}FLOP"


def tokens_per_second(value: float) -> str:
    """A rate of tokens: ``12,345 tokens/s``, ``86.3 tokens/s``."""
    return f"{_three(value)} tokens/s"


def energies(joules: Mapping[str, float]) -> dict[str, str]:
    """Figures of one column, in one unit and to the same place, of which the largest has four digits."""
    largest = max(joules.values(), default=0.0)
    unit, length = next(
        ((unit, size) for unit, size in (("kWh", 3.6e6), ("Wh", 3600.0)) if largest >= size), ("J", 1.0)
    )
    places = _places(largest / length)
    return {name: f"{value / length:,.{places}f} {unit}" for name, value in joules.items()}


def prices(usd: Mapping[str, float]) -> dict[str, str]:
    """Figures of one column, to the same place: cents, or what gives the largest four digits."""
    places = max(2, _places(max(usd.values(), default=0.0)))
    return {name: f"${value:,.{places}f}" for name, value in usd.items()}


def _three(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _places(largest: float) -> int:
    """Decimal places with which the largest figure has four digits."""
    return min(max(3 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 0
