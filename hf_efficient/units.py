"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["clock", "count", "seconds", "share", "short_count", "short_seconds", "size", "usd"]


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


def short_seconds(value: float) -> str:
    """A duration that may be short, to three digits: ``412 µs``, ``3.05 ms``, ``81.2 ms``, ``1.25 s``, ``12.3 s``."""
    if value >= 9.995:
        return seconds(value)
    for scale, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if value * scale >= 0.9995 or unit == "µs":
            digits = value * scale
            return f"{digits:.{2 if digits < 9.995 else 1 if digits < 99.95 else 0}f} {unit}"
    raise AssertionError("microseconds take everything")


def size(number: int) -> str:
    """Bytes: ``512 B``, ``3.4 KiB``, ``1.21 GiB``."""
    scaled, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if scaled < 1023.95:
            break
        scaled, unit = scaled / 1024, larger
    return f"{number} B" if unit == "B" else f"{scaled:.{2 if unit in ('GiB', 'TiB') else 1}f} {unit}"


def usd(value: float) -> str:
    """Money: ``$0``, ``$0.0031``, ``$0.42``, ``$12.30``, ``$1,234``."""
    if value >= 999.5:
        return f"${value:,.0f}"
    if value >= 0.00995 or value == 0:
        return f"${value:.2f}" if value else "$0"
    return f"${float(f'{value:.2g}'):.10f}".rstrip("0")


def clock(value: float) -> str:
    """A duration given in seconds, as a clock shows it: ``0:42``, ``12:05``, ``2:31:05``."""
    minutes, whole = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def short_count(number: float) -> str:
    """A count to three digits: ``950``, ``12.3k``, ``1.24M``."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale * 0.9995:
            digits = number / scale
            return f"{digits:.{2 if digits < 9.995 else 1 if digits < 99.95 else 0}f}{unit}"
    return f"{number:.0f}"
