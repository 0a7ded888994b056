"""What phases and kinds of memory are called, the one colour of each in every plot, and figures in columns."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from hf_efficient.records.account import TimeAccount
from hf_efficient.records.steps import PHASES
from hf_efficient.text import count, flops, share, short_seconds, size, usd

OTHER_COLOR = "#7a828c"  # of what a newer version has recorded

# The colours were searched for by the distance in OKLab that is left under the three dichromacies (Machado, Oliveira
# and Fernandes 2009, severity 1): at least 9 between any two phases of a step, and at least 8 between neighbours in a
# stack. None is lost on a light or a dark page. The kinds of memory are paler, for the lines that run over them, and at
# least 8 from each other. Tests hold all that.
PHASE_COLORS = {
    "imports": "#606f88",
    "before_trainer": "#acc8d1",
    "model_load": "#678e8d",
    "data_preparation": "#79ac98",
    "planning": "#d9c1a0",
    "trainer_setup": "#45686c",
    "compilation": "#7c3ddb",
    "data_wait": "#de9b24",
    "host_to_device": "#e3ce80",
    "generation": "#5a2a4e",
    "reward": "#ccfc18",
    "forward": "#65b5f4",
    "backward": "#2e548d",
    "device_wait": "#67e4ea",
    "optimizer": "#4c8b5d",
    "communication": "#de4605",
    "bookkeeping": "#698cf5",
    "logging": "#b4b9a0",
    "evaluation": "#a45fb5",
    "checkpointing": "#823f35",
    "forward_backward": "#2383d2",
    "between_steps": "#e6b168",
    "merging": "#ae7571",
    "outside_trainer": "#b5a6be",
    "shutdown": "#5b4c6c",
    "unattributed": "#8b979f",
}
CATEGORY_COLORS = {
    "weights": "#6f88a8",
    "adapter": "#92dcfe",
    "gradients": "#f2c27c",
    "optimizer_state": "#6daf88",
    "activations": "#b293dd",
    "logits": "#a7726a",
    "rest": "#bdbebe",
}
_PHASE_LABELS = {
    "imports": "start of Python, imports",
    "before_trainer": "before the trainer",
    "trainer_setup": "trainer set-up",
    "host_to_device": "host to device",
    "device_wait": "host waits for the GPU",
    "bookkeeping": "bookkeeping and callbacks",
    "forward_backward": "forward and backward",
    "between_steps": "data wait and logging",
    "outside_trainer": "outside the trainer",
    "exposed_wait": "waiting between steps",
}


def phase_label(name: str) -> str:
    return _PHASE_LABELS.get(name, name.replace("_", " "))


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


def or_nothing(value: float | None, form: Callable[[float], str]) -> str:
    return "n/a" if value is None else form(value)


def signed_percent(relative: float | None) -> str:
    """``+3.1%``; empty where it is not known."""
    return "" if relative is None else f"{100 * relative + 0.0:+.1f}%".replace("-0.0%", "+0.0%")


def rounded_size(value: float) -> str:
    return size(round(value))


def tensor_shape(shape: Sequence[int]) -> str:
    return " x ".join(f"{length:,}" for length in shape)


def in_gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f}"


def tokens_per_second(value: float) -> str:
    return f"{_three(value)} tokens/s"


def short_number(value: float) -> str:
    """A figure for a narrow column: ``0.042``, ``1.5``, ``83.2``, ``1,234``; two digits below 1, else one place."""
    if value == 0 or value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 0.995 else f"{value:.{1 - math.floor(math.log10(value))}f}"


def energies(joules: Mapping[str, float]) -> dict[str, str]:
    """Figures of one column, in one unit and to the same place, of which the largest has three digits."""
    largest = max(joules.values(), default=0.0)
    unit, length = ("kWh", 3.6e6) if largest >= 3599.5 else ("Wh", 3600.0)  # as text.kilowatt_hours does
    places = _places(largest / length)
    return {name: f"{value / length:,.{places}f} {unit}" for name, value in joules.items()}


def prices(paid: Mapping[str, float]) -> dict[str, str]:
    """Figures of one column, to the same place: cents, or what gives the largest three digits."""
    places = max(2, _places(max(paid.values(), default=0.0)))
    return {name: f"${value:,.{places}f}" for name, value in paid.items()}


_UNITS: dict[str, Callable[[float], str]] = {
    "seconds": short_seconds,
    "bytes": rounded_size,
    "share": share,
    "usd": usd,
    "FLOP/s": lambda value: f"{flops(value)}FLOP/s",
}


def evidence_value(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit in _UNITS:
        return _UNITS[unit](value)
    shown = count(value) if isinstance(value, int) else _three(value)
    return shown if unit in ("", "count") else f"{shown} {unit}"


def _three(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def _places(largest: float) -> int:
    return min(max(2 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 0
