"""Numbers as people read them, and text as a terminal may show it."""

import math
import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text of somebody else's for a terminal: control characters but line feeds and tabs as ``\\x1b``."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def count(number: int) -> str:
    """A count: ``950``, ``12,345``, ``4.88 million``, ``1.24 billion``."""
    if number < 1_000_000:
        return f"{number:,}"
    return f"{number / 1e6:.2f} million" if number < 1_000_000_000 else f"{number / 1e9:.2f} billion"


def counted(number: int, name: str) -> str:
    """``1 row``, ``1,234 rows``, ``8 micro-batches``."""
    end = "" if number == 1 else "es" if name.endswith("ch") else "s"
    return f"{count(number)} {name}{end}"


def flops(number: float) -> str:
    """Floating-point operations or a rate of them, to three digits, less the end of the unit: ``12.3 T``, ``870 M``."""
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * scale:
            return f"{_three_digits(number / scale)} {prefix}"
    return f"{number:.0f} "


def grams(value: float) -> str:
    """A mass given in grams, to three digits: ``0.0213 g``, ``5.9 g``, ``512 g``, ``1.21 kg``."""
    return f"{_three_digits(value)} g" if value < 999.5 else f"{_three_digits(value / 1000)} kg"


def kilowatt_hours(joules: float) -> str:
    """An energy given in joules, to three digits: ``0.035 Wh``, ``0.0123 kWh``, ``4.5 kWh``, ``1,230 kWh``."""
    return f"{_three_digits(joules / 3.6e6)} kWh" if joules >= 3599.5 else f"{_three_digits(joules / 3.6e3)} Wh"


def usd(value: float) -> str:
    """Dollars: ``$0.42``, ``$1,234.50``; below ten cents to two digits, so that little is not nothing: ``$0.0031``."""
    if value >= 0.0995 or value == 0:
        return f"${value:,.2f}"
    digits = 1 - math.floor(math.log10(value))
    return f"${value:.{digits}f}"


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(value)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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
    scales = ((1.0, "s"), (1e3, "ms"))
    scale, unit = next((one for one in scales if value * one[0] >= 0.9995), (1e6, "µs"))
    return f"{_three_places(value * scale)} {unit}"


def _three_places(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def size(number: float) -> str:
    """Bytes: ``512 B``, ``3.4 KiB``, ``1.21 GiB``."""
    scaled, unit = number, "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if scaled < 1023.95:
            break
        scaled, unit = scaled / 1024, larger
    return f"{round(number)} B" if unit == "B" else f"{scaled:.{2 if unit in ('GiB', 'TiB') else 1}f} {unit}"


def clock(value: float) -> str:
    """A duration given in seconds, as a clock shows it: ``0:42``, ``12:05``, ``2:31:05``."""
    minutes, whole = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def short_count(number: float) -> str:
    """A count to three digits: ``950``, ``12.3k``, ``1.24M``."""
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale * 0.9995:
            return f"{_three_places(number / scale)}{unit}"
    return f"{number:.0f}"


def sentence(text: str) -> str:
    """A name from code stays as it is written."""
    return text if "_" in text.partition(" ")[0] else f"{text[:1].upper()}{text[1:]}"


def instrument_cost(
    cost_seconds: float | None, own_seconds: float, steps: int, files: Sequence[str] = (), note: str = ""
) -> str:
    """What a profiler cost its run: ``cost 1.2 s over 4 steps (0.3 s of it in its own code): NOTE; wrote FILES``."""
    if cost_seconds is None:
        told = "did not run"
    else:
        over = f" over {counted(steps, 'step')}" if steps else ""
        told = f"cost {short_seconds(cost_seconds)}{over} ({short_seconds(own_seconds)} of it in its own code)"
    told += f": {note}" if note else ""
    return f"{told}; wrote {', '.join(files)}" if files else told
