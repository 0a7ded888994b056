"""A tuning on a terminal: the ladder, what was tried, and what was promised beside what came."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from hf_efficient.records.tuning import Gain, Rung, Tuning
from hf_efficient.reporting.terminal import FoundTable, drawn
from hf_efficient.text import seconds, short_seconds, size, usd

_VERDICTS = {
    "accepted": "accepted",
    "no_gain": "no gain",
    "undecided": "not clear",
    "worse_loss": "refused: worse loss",
    "over_limit": "refused: above a limit",
    "does_not_fit": "not run: does not fit",
    "failed": "failed",
    "no_time": "no time left",
}


def gain_words(gain: Gain) -> str:
    """``1.42 times [1.38, 1.47]``."""
    interval = "" if gain.low is None or gain.high is None else f" [{gain.low:.2f}, {gain.high:.2f}]"
    return f"{gain.ratio:.2f} times{interval}"


def _short(gain: Gain) -> str:
    return gain_words(gain).replace(" times", "")


def ladder_table(found: Tuning) -> FoundTable:
    """A row for the recipe and for each accepted change; money only where a price is known."""
    headings = ["recipe", "tokens/s", "gain", "p50", "p95", "memory", "pauses", "$/M tokens"]
    rows = [_rung_cells(one, place) for place, one in enumerate(found.ladder)]
    if all(one.usd_per_million_tokens is None for one in found.ladder):
        headings, rows = headings[:-1], [row[:-1] for row in rows]
    return FoundTable(headings, rows, "The ladder")


def _rung_cells(one: Rung, place: int) -> list[str]:
    return [
        f"{'+ ' if place else ''}{one.what}",
        f"{one.tokens_per_second:,.0f}",
        "" if one.gain is None else _short(one.gain),
        short_seconds(one.p50_seconds),
        short_seconds(one.p95_seconds),
        "-" if one.peak_bytes is None else size(one.peak_bytes),
        f"{one.pause_share:.0%}",
        "-" if one.usd_per_million_tokens is None else usd(one.usd_per_million_tokens),
    ]


def tried_table(found: Tuning) -> FoundTable:
    rows = [
        [
            one.knob,
            _VERDICTS[one.verdict],
            "-" if one.gain is None else _short(one.gain),
            "-" if one.predicted is None else f"{one.predicted:.2f}",
            "-" if one.loss_ratio is None else f"{one.loss_ratio - 1:+.2%}",
            str(one.rounds or "-"),
        ]
        for one in found.tried
    ]
    return FoundTable(["change", "verdict", "gain", "predicted", "loss", "pairs"], rows, "What was tried", words=(0, 1))


def head_lines(found: Tuning) -> Iterator[str]:
    yield f"{found.recipe}, tuned for {found.objective.replace('_', ' ')} in {seconds(found.spent_seconds)} of trials"
    if found.total is not None:
        yield f"tuned beside original, in runs of their own: {gain_words(found.total)}"
    if not found.changes:
        yield "nothing was changed: no candidate gains beyond the noise, or may be taken"


def notes(found: Tuning) -> Iterator[str]:
    yield (
        "tokens/s are without padding, over steps, evaluations and saves; these two were timed once, on the recipe as "
        "it is. A gain is of the figure of the objective; its interval errs with 5% for each change, over all looks"
    )
    yield (
        "loss: on held-out rows after equal tokens, against the original; more than "
        f"{found.settings['tolerance']:+.0%} is refused"
    )
    firsts = {one.knob: one for one in reversed(found.tried)}  # a knob can be turned twice
    for one in reversed(firsts.values()):
        costs = f"; it costs {one.costs}" if one.verdict == "accepted" else ""
        yield f"{one.knob}: {one.what}{f': {one.why}' if one.why else ''}{costs}"
        if one.promised:
            came = "" if one.gain is None else f"; measured here: {gain_words(one.gain)}"
            yield f"{one.knob}: promised elsewhere: {one.promised}{came}"
    yield from found.notes


def tuning_renderables(found: Tuning) -> list[RenderableType]:
    head, *rest = head_lines(found)
    tried: list[RenderableType] = [drawn(tried_table(found)), Text()] if found.tried else []
    return [
        Text(head, "bold"),
        *(Text(line, "bold green") for line in rest),
        Text(),
        drawn(ladder_table(found)),
        Text(),
        *tried,
        *(Text(f"{line[:1].upper()}{line[1:]}.", "dim") for line in notes(found)),
    ]
