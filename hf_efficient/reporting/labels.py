"""What phases and kinds of memory are called, the one colour of each in every plot, and figures in columns."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from hf_efficient.facts.tables import key_table
from hf_efficient.records.account import TimeAccount
from hf_efficient.records.steps import PHASES
from hf_efficient.text import count, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd

_T = TypeVar("_T")
OTHER_COLOR = "#7a828c"  # of what a newer version has recorded

_WORDS = key_table("report_words")
PHASE_COLORS: dict[str, str] = _WORDS["phase_colors"]
CATEGORY_COLORS: dict[str, str] = _WORDS["memory_colors"]


def called(table: str) -> Any:
    """A table of names and colours, of ``facts/data/report_words.yaml``."""
    return _WORDS[table]


def phase_label(name: str) -> str:
    return str(_WORDS["phase_labels"].get(name, name.replace("_", " ")))


def phase_color(name: str) -> str:
    return PHASE_COLORS.get(name, OTHER_COLOR)


def category_label(name: str) -> str:
    return "everything else" if name == "rest" else name.replace("_", " ")


def category_color(name: str) -> str:
    return CATEGORY_COLORS.get(name, OTHER_COLOR)


def phases_in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: PHASES.index(name) if name in PHASES else len(PHASES))


def all_phases(time: TimeAccount) -> dict[str, float]:
    return {**time.phase_seconds, "unattributed": time.unattributed_seconds}


NOTHING = "n/a"


def or_nothing(value: _T | None, form: Callable[[_T], str], nothing: str = NOTHING) -> str:
    return nothing if value is None else form(value)


def told(value: _T | None, form: Callable[[_T], str], words: str = "{}") -> str:
    """The figure in its words, as in ``{} padding``; empty where it is not known."""
    return "" if value is None else words.format(form(value))


def signed_percent(relative: float | None) -> str:
    """``+3.1%``; empty where it is not known."""
    return "" if relative is None else f"{100 * relative + 0.0:+.1f}%".replace("-0.0%", "+0.0%")


def tensor_shape(shape: Sequence[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def tokens_per_second(value: float) -> str:
    return f"{three_digits(value)} tokens/s"


def short_number(value: float) -> str:
    """A figure for a narrow column: ``0.042``, ``1.5``, ``83.2``, ``1,234``; two digits below 1, else one place."""
    if value == 0 or value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.{1 - math.floor(math.log10(value))}f}"


FORMS: dict[str, Callable[[float], str]] = {
    "seconds": short_seconds,
    "duration": seconds,
    "bytes": size,
    "share": share,
    "usd": usd,
    "energy": kilowatt_hours,
    "grams": grams,
    "rate": tokens_per_second,
    "large": lambda value: count(round(value)),
    "whole": "{:,.0f}".format,
    "number": "{:.4g}".format,
    "FLOP/s": lambda value: f"{flops(value)}FLOP/s",
}


def figures(table: str) -> dict[str, tuple[str, Callable[[float], str]]]:
    """A table of ``called``: what each figure is called, and its form."""
    return {name: (label, FORMS[form]) for name, (label, form, *_) in called(table).items()}


def evidence_value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit in FORMS:
        return FORMS[unit](value)
    shown = count(value) if isinstance(value, int) else three_digits(value)
    return shown if unit in ("", "count") else f"{shown} {unit}"


def three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
