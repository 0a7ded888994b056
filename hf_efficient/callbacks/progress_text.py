"""The figures beside a progress bar: one line, as much of it as there is room for."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.text import clock, short_count, short_seconds, usd

BAR_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
"""tqdm's, without its own estimate of the time left: that one knows nothing of evaluations and saves."""

_SMALLEST_BAR = 8


@dataclass(frozen=True)
class Progress:
    """What a progress bar may show; None where it is not known.

    Attributes:
        seconds_left: to the end of the training, evaluations and saves included.
        lower_bound: it takes longer by something that was not measured yet.
        tokens_per_second: without padding, of all ranks.
        step_seconds: shown where tokens are not counted.
        cost_usd, total_usd: until now, and at the end.
    """

    seconds_left: float | None = None
    lower_bound: bool = False
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    mfu: float | None = None
    cost_usd: float | None = None
    total_usd: float | None = None


def progress_text(progress: Progress, room: int | None = None) -> str:
    """``2:31:05 left, 12.3k tok/s, 31% MFU, $1.20 of $4.80``; without room the later parts go first, the total at
    once."""
    left, rate, mfu = _left(progress), _rate(progress), _mfu(progress)
    short = "" if progress.cost_usd is None else usd(progress.cost_usd)
    money = (
        short if not short or progress.total_usd is None else f"{short} of {_more(progress)}{usd(progress.total_usd)}"
    )
    text = ""
    for shown in ([left, rate, mfu, money], [left, rate, mfu, short], [left, rate, short], [left, short], [left]):
        text = ", ".join(part for part in shown if part)
        if room is None or len(text) <= room:
            return text
    return ""


def room_for_figures(columns: int | None, done: int, of: int, elapsed_seconds: float) -> int | None:
    """The characters that are left beside a bar of this many columns, its counts and its clock; None: no limit."""
    if columns is None:
        return None
    taken = len("100%|") + _SMALLEST_BAR + len(f"| {done}/{of} [") + len(clock(elapsed_seconds)) + len("0, ]")
    return max(0, columns - taken)


def _more(progress: Progress) -> str:
    return ">" if progress.lower_bound else ""


def _left(progress: Progress) -> str:
    return "" if progress.seconds_left is None else f"{_more(progress)}{clock(progress.seconds_left)} left"


def _rate(progress: Progress) -> str:
    if progress.tokens_per_second is not None:
        return f"{short_count(progress.tokens_per_second)} tok/s"
    return "" if progress.step_seconds is None else f"{short_seconds(progress.step_seconds)} a step"


def _mfu(progress: Progress) -> str:
    return "" if progress.mfu is None else f"{100 * progress.mfu:.2g}% MFU"
