"""Rates, and columns of figures that stand under each other, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hf_efficient.units import count, flops, share, short_seconds, size, usd

__all__ = ["energies", "evidence_value", "prices", "short_number", "tokens_per_second"]


def tokens_per_second(value: float) -> str:
    """A rate of tokens: ``12,345 tokens/s``, ``86.3 tokens/s``."""
    return f"{_three(value)} tokens/s"


def short_number(value: float) -> str:
    """A figure for a narrow column: ``0.042``, ``1.5``, ``83.2``, ``1,234``; two digits below 1, else one place."""
    if value == 0 or value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.{1 - math.floor(math.log10(value))}f}"


def energies(joules: Mapping[str, float]) -> dict[str, str]:
    """Figures of one column, in one unit and to the same place, of which the largest has three digits."""
    largest = max(joules.values(), default=0.0)
    unit, length = ("kWh", 3.6e6) if largest >= 3599.5 else ("Wh", 3600.0)  # as units.kilowatt_hours does
    places = _places(largest / length)
    return {name: f"{value / length:,.{places}f} {unit}" for name, value in joules.items()}


def prices(usd: Mapping[str, float]) -> dict[str, str]:
    """Figures of one column, to the same place: cents, or what gives the largest three digits."""
    places = max(2, _places(max(usd.values(), default=0.0)))
    return {name: f"${value:,.{places}f}" for name, value in usd.items()}


_UNITS: dict[str, Callable[[float], str]] = {
    "seconds": lambda value: short_seconds(float(value)),
    "bytes": lambda value: size(round(value)),
    "share": share,
    "usd": usd,
    "FLOP/s": lambda value: f"{flops(value)}FLOP/s",
}


def evidence_value(value: float | str, unit: str) -> str:
    """A figure of a finding in its unit, as people read it; words as they are."""
    if isinstance(value, str):
        return value
    if unit in _UNITS:
        return _UNITS[unit](value)
    shown = count(value) if isinstance(value, int) else _three(value)
    return shown if unit in ("", "count") else f"{shown} {unit}"


def _three(value: float) -> str:
    """Three digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _places(largest: float) -> int:
    """Decimal places with which the largest figure has three digits."""
    return min(max(2 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 0
