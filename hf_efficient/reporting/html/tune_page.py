"""The page of a tuning."""

from datetime import datetime

from hf_efficient.records.tuning import Tuning
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_sections import Tile
from hf_efficient.reporting.plots.figure import BLUE, Figure, axis, bar
from hf_efficient.reporting.tuning import gain_words, head_lines, ladder_table, notes, tried_table
from hf_efficient.text import seconds

_BAR_HEIGHT, _AXES_HEIGHT = 34, 70


def tune_page(found: Tuning, command: str, recipe_text: str, written: datetime | None = None) -> str:
    """``recipe_text``: of the tuned recipe, empty where nothing was changed; ``command`` makes the page again."""
    sections = [
        Section("summary", "In short", context={"tiles": _tiles(found)}),
        Section("ladder", "The ladder", [_ladder(found)], {"table": ladder_table(found)}),
        Section("tried", "What was tried", context={"table": tried_table(found)}, short="Tried"),
        Section("tuned", "The tuned recipe", context={"text": recipe_text}, short="Recipe") if recipe_text else None,
        Section("tune_notes", "What the figures mean", context={"notes": list(notes(found))}, short="Notes"),
    ]
    return render(
        "tune",
        sections,
        span=None,
        title=f"{found.recipe}: tuning · hf_efficient",
        kind="tuning",
        command=command,
        written=written,
        found=found,
        lines=list(head_lines(found)),
    )


def _tiles(found: Tuning) -> list[Tile]:
    first, last = (f"{one.tokens_per_second:,.0f}" for one in (found.ladder[0], found.ladder[-1]))
    total = None if found.total is None else gain_words(found.total)
    return [
        Tile("Tokens/s", last, f"from {first}"),
        Tile("Tuned beside original", total, "in runs of their own"),
        Tile("Trials", seconds(found.spent_seconds), "of the machine's time"),
    ]


def _ladder(found: Tuning) -> Figure:
    rows = [f"{'+ ' if place else ''}{one.what}" for place, one in enumerate(found.ladder)]
    rates = [one.tokens_per_second for one in found.ladder]
    hover = [f"{rate:,.0f} tokens/s" for rate in rates]
    traces = [bar("tokens/s", BLUE, rates, rows, hover)]
    layout = {"xaxis": axis("tokens/s without padding"), "yaxis": axis("", autorange="reversed")}
    summary = f"From {rates[0]:,.0f} to {rates[-1]:,.0f} tokens/s, evaluations and saves included."
    height = _BAR_HEIGHT * len(rows) + _AXES_HEIGHT
    return Figure("ladder_rates", "Tokens/s, change by change", summary, traces, layout, height, zoomable=False)
