"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["count", "flops", "seconds", "share", "short_seconds", "size"]


def count(number: int) -> str:
    """A count: ``950``, ``12,345``, ``4.88 million``, ``1.24 billion``."""
    if number < 1_000_000:
        return f"{number:,}"
    if number < 1_000_000_000:
        return f"{number / 1e6:.2f} million"
    return f"{number / 1e9:.2f} billion"


def flops(number: float) -> str:
    """Floating-point operations, or a rate of them, to three digits, without a unit's end: ``12.3 T``, ``870 M``."""
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * scale:
            return f"{_three_digits(number / scale)} {prefix}"
    return f"{number:.0f} "


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


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


def short_seconds(value: float) -> str:
    """A duration that may be short, to three digits: ``412 µs``, ``3.05 ms``, ``81.2 ms``, ``1.25 s``, ``12.3 s``."""
    if value >= 9.995:
        return seconds(value)
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * scale >= 0.9995 or unit == "µs":
            return f"{_three_digits(value * scale)} {unit}"
    raise AssertionError("microseconds take everything")


def size(number: int) -> str:
    """Bytes: ``512 B``, ``3.4 KiB``, ``1.21 GiB``."""
    scaled, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if scaled < 1023.95:
            break
        scaled, unit = scaled / 1024, larger
    return f"{number} B" if unit == "B" else f"{scaled:.{2 if unit in ('GiB', 'TiB') else 1}f} {unit}"
