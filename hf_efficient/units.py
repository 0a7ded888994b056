"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["count", "seconds", "share"]


def count(number: int) -> str:
    """A count: ``950``, ``12,345``, ``4.88 million``, ``1.24 billion``."""
    if number < 1_000_000:
        return f"{number:,}"
    if number < 1_000_000_000:
        return f"{number / 1e6:.2f} million"
    return f"{number / 1e9:.2f} billion"


def seconds(value: float) -> str:
    """A duration given in seconds: ``4.2 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(value / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def share(value: float) -> str:
    """A share between 0 and 1 in percent, to three significant digits: ``3.5%``, ``0.0712%``."""
    return f"{100 * value:.3g}%"
