"""Runs beside a first one: the rows for terminal, page and Markdown, and the lines around the table."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.accounting.headline import scaling_of
from hf_efficient.records.account import RunAccount
from hf_efficient.records.comparison import Compared, ComparedFigure, FigureChange, RunComparison
from hf_efficient.reporting.labels import rounded_size, signed_percent, tokens_per_second
from hf_efficient.reporting.terminal import FoundTable, dim_lines, drawn, markdown_table, table
from hf_efficient.text import count, counted, grams, kilowatt_hours, seconds, share, short_seconds, usd

_STYLES = {"better": "green", "worse": "red", "alike": "dim", "": "dim"}
_WORDS = {"better": "better", "worse": "worse", "alike": "within noise", "": ""}
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "wall_seconds": ("wall time", seconds),
    "training_seconds": ("time of the training steps", seconds),
    "steps": ("optimizer steps", "{:,.0f}".format),
    "non_padding_tokens": ("tokens without padding", lambda value: count(round(value))),
    "non_padding_tokens_per_second": ("throughput, without padding", tokens_per_second),
    "padding_share": ("padding", share),
    "step_p50_seconds": ("step time, median", short_seconds),
    "step_p95_seconds": ("step time, p95", short_seconds),
    "mfu": ("MFU", share),
    "hfu": ("HFU", share),
    "device_peak_allocated_bytes": ("peak memory on the device", rounded_size),
    "peak_rss_bytes": ("peak memory of the host", rounded_size),
    "cost_usd": ("cost", usd),
    "usd_per_million_non_padding_tokens": ("per million tokens without padding", usd),
    "energy_joules": ("energy", kilowatt_hours),
    "co2e_grams": ("CO₂ equivalent", grams),
    "loss_before": ("evaluation loss before", "{:.4g}".format),
    "loss_after": ("evaluation loss after", "{:.4g}".format),
    "training_loss": ("training loss, the last logged", "{:.4g}".format),
    "unattributed_share": ("unattributed", share),
    "evaluation_loss_at_equal_tokens": ("evaluation loss at equal tokens", "{:.4g}".format),
    "training_loss_at_equal_tokens": ("training loss at equal tokens", "{:.4g}".format),
}
_KINDS = {"recipe": "recipe", "data": "data", "version": "versions", "hardware": "hardware"}


class Change(NamedTuple):
    """A side's figure, its change against the first (``+12.3%``), the interval of that, and whether it is ``better``,
    ``worse`` or ``alike``, in ``word`` with what that rests on."""

    value: str
    change: str = ""
    interval: str = ""
    kind: str = ""
    word: str = ""


class ComparisonRow(NamedTuple):
    label: str
    sides: list[Change]


def figure_label(name: str) -> str:
    return _FIGURES[name][0]


def comparison_rows(found: RunComparison, accounts: Sequence[RunAccount]) -> list[ComparisonRow]:
    """The figures that at least one side has. ``accounts``: of the first run of each side."""
    return [*map(_row, found.figures), *_scaling(accounts)]


def _row(figure: ComparedFigure) -> ComparisonRow:
    label, form = _FIGURES[figure.name]
    pairs = zip(figure.values, figure.changes, strict=True)
    return ComparisonRow(label, [_cell(None if value is None else form(value), change) for value, change in pairs])


def _cell(value: str | None, change: FigureChange | None) -> Change:
    if value is None or change is None:
        return Change(value or "")
    word = _WORDS[change.judgement]
    if change.compared is None and word:
        word += ", one value"
    interval = "" if change.compared is None else _interval(change.compared)
    return Change(value, signed_percent(change.relative), interval, change.judgement, word)


def _interval(found: Compared) -> str:
    if found.low is None or found.high is None:
        return "" if found.p_value is None else f"p={found.p_value:.3f} n={found.count}"
    low, high = signed_percent(found.low - 1), signed_percent(found.high - 1)
    return f"{low} to {high}"


def _scaling(accounts: Sequence[RunAccount]) -> list[ComparisonRow]:
    """Ranks, and what each keeps of the speed that a rank of the first run has; nothing of runs with as many."""
    ranks = [max(1, len(account.ranks)) for account in accounts]
    if len(set(ranks)) < 2:
        return []
    words = ["" if value is None else share(value) for value in scaling_of(accounts)]
    return [
        ComparisonRow("ranks", [Change(f"{number:,}") for number in ranks]),
        ComparisonRow("scaling efficiency against the first run", [Change(value) for value in words]),
    ]


def side_lines(found: RunComparison) -> Iterator[tuple[str, str, str]]:
    for side in found.sides:
        yield side.letter, side.name, ", ".join(side.directories)


def changed_table(found: RunComparison) -> FoundTable:
    rows = [
        [_KINDS[one.kind], one.key, *("not there" if value is None else value for value in one.values)]
        for one in found.changed
    ]
    letters = [side.letter for side in found.sides]
    return FoundTable(["changed", "", *letters], rows, words=range(2 + len(letters)))


def regression_lines(found: RunComparison) -> Iterator[str]:
    for one in found.regressions:
        change = signed_percent(one.relative)
        yield f"{one.letter}: {figure_label(one.figure)} {change}, beyond its threshold of {100 * one.allowed:g}%"


def note_lines(found: RunComparison) -> Iterator[str]:
    yield from found.notes
    for one in found.resolution:
        shown, figure = share(one.share), figure_label(one.figure)
        yield (
            f"{one.letter}: {counted(one.steps, 'step')} show a difference of {shown} in {figure}, in 80% of cases; "
            f"1% needs {count(one.steps_for_one_percent)} on each side"
        )
    reasons: dict[str, list[str]] = {}
    for name, why in found.left_out.items():
        reasons.setdefault(why, []).append(figure_label(name))
    for why, labels in reasons.items():
        yield f"not compared, as {why}: {', '.join(labels)}"
    if any(change is not None and change.compared for one in found.figures for change in one.changes):
        yield (
            "intervals hold the true changes with 95% together; a change outside them is marked better or worse; "
            "one value: a change as measured, without a spread"
        )


def comparison_renderables(found: RunComparison, accounts: Sequence[RunAccount]) -> list[RenderableType]:
    names = Table.grid(padding=(0, 2, 0, 0))
    for letter, name, directories in side_lines(found):
        names.add_row(Text(letter, "bold"), Text(name), Text(directories, "dim"))
    changed = changed_table(found)
    nothing = Text("Nothing is known to have changed in recipe, data, versions and hardware.", "dim")
    parts: list[RenderableType] = [names, Text(), drawn(changed) if changed.rows else nothing]
    rows = comparison_rows(found, accounts)
    for place, side in enumerate(found.sides[1:], start=1):
        parts += [Text(), _figures(rows, side.letter, place)]
    parts += [Text(line, "bold red") for line in regression_lines(found)]
    return [*parts, *dim_lines("Notes:", note_lines(found))]


def _figures(rows: Sequence[ComparisonRow], letter: str, place: int) -> Table:
    made = table("", "A", letter, "change", "interval", "", words=(0, 5))
    for row in rows:
        first, other = row.sides[0], row.sides[place]
        if first.value or other.value:
            style = _STYLES[other.kind]
            ends = (Text(other.change, style), Text(other.interval, "dim"), Text(other.word, style))
            made.add_row(Text(row.label, no_wrap=True), first.value or "n/a", other.value or "n/a", *ends)
    return made


def markdown(found: RunComparison, accounts: Sequence[RunAccount], command: str) -> str:
    """For a pull request: regressions first, the figures, then what changed and the notes, folded."""
    names = [f"- **{letter}** {name} (`{directories}`)" for letter, name, directories in side_lines(found)]
    regressions = [f"- **{line}**" for line in regression_lines(found)]
    headings = ["figure", "A"]
    for side in found.sides[1:]:
        headings += [side.letter, "change", "interval", ""]
    rows = []
    for row in comparison_rows(found, accounts):
        cells = [row.label, row.sides[0].value or "n/a"]
        for each in row.sides[1:]:
            cells += [
                each.value or "n/a",
                each.change,
                each.interval,
                f"**{each.word}**" if each.kind == "worse" else each.word,
            ]
        rows.append(cells)
    changed = changed_table(found)
    folded = [f"- {line}" for line in note_lines(found)]
    if changed.rows:
        folded = [*markdown_table(changed), "", *folded]
    parts = [[f"### {command}"], regressions, names, markdown_table(FoundTable(headings, rows))]
    parts.append(["<details><summary>What changed, and how it was compared</summary>", "", *folded, "", "</details>"])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
