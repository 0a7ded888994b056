"""The pages of a tuning and of a sweep."""

from datetime import datetime

from hf_efficient.records.tuning import Sweep, Tuning
from hf_efficient.reporting.html.render import Section, render
from hf_efficient.reporting.html.run_sections import Tile
from hf_efficient.reporting.plots.figure import BLUE, GREEN, Figure, axis, bar
from hf_efficient.reporting.sweep import answer, sweep_figures, sweep_notes, sweep_table
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
    first, last = found.ladder[0], found.ladder[-1]
    total = found.total
    accepted = sum(one.verdict == "accepted" for one in found.tried)
    return [
        Tile("Tokens/s", f"{last.tokens_per_second:,.0f}", f"from {first.tokens_per_second:,.0f}"),
        Tile("Tuned beside original", None if total is None else gain_words(total), "in runs of their own"),
        Tile("Changes", str(accepted), f"accepted of {len(found.tried)} that were tried"),
        Tile("Trials", seconds(found.spent_seconds), "of the machine's time"),
    ]


def _ladder(found: Tuning) -> Figure:
    rows = [f"{'+ ' if place else ''}{one.what}" for place, one in enumerate(found.ladder)]
    rates = [one.tokens_per_second for one in found.ladder]
    hover = [f"{rate:,.0f} tokens/s" for rate in rates]
    traces = [
        bar("the recipe", BLUE, rates[:1], rows[:1], hover[:1]),
        bar("with changes", GREEN, rates[1:], rows[1:], hover[1:]),
    ]
    layout = {"xaxis": axis("tokens/s without padding"), "yaxis": axis("", autorange="reversed"), "barmode": "stack"}
    summary = f"From {rates[0]:,.0f} to {rates[-1]:,.0f} tokens/s, evaluations and saves included."
    height = _BAR_HEIGHT * len(rows) + _AXES_HEIGHT
    return Figure("ladder_rates", "Tokens/s, change by change", summary, traces, layout, height, zoomable=False)


def sweep_page(found: Sweep, command: str, written: datetime | None = None) -> str:
    points = {"table": sweep_table(found), "notes": list(sweep_notes(found))}
    curves = Section("curves", "Against the micro-batch", sweep_figures(found))
    return render(
        "sweep",
        [curves, Section("points", "Points", context=points)],
        span=None,
        title=f"{found.recipe}: sweep · hf_efficient",
        kind="throughput or latency",
        command=command,
        written=written,
        found=found,
        answer=answer(found),
    )
