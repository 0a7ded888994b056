"""Runs beside a first one: the rows for terminal, page and Markdown, and the lines around the table."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from hf_efficient.accounting.live import scaling_of
from hf_efficient.records.account import RunAccount
from hf_efficient.records.comparison import Compared, ComparedFigure, FigureChange, RunComparison
from hf_efficient.reporting.labels import figures, or_nothing, signed_percent
from hf_efficient.reporting.terminal import FoundTable, dim_lines, drawn, markdown_table, table
from hf_efficient.text import count, counted, share

_STYLES = {"better": "green", "worse": "red", "alike": "dim", "": "dim"}
_WORDS = {"better": "better", "worse": "worse", "alike": "within noise", "": ""}
_FIGURES = figures("compared")


class Change(NamedTuple):
    """A side's figure beside the first's; ``kind``: ``better``, ``worse`` or ``alike``, in ``word`` with its ground."""

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
    sides = [_cell(or_nothing(value, form, ""), change, bool(figure.better)) for value, change in pairs]
    return ComparisonRow(label, sides)


def _cell(value: str, change: FigureChange | None, is_judged: bool) -> Change:
    if not value or change is None:
        return Change(value)
    word = _WORDS[change.judgement]
    if change.compared is None and is_judged and change.relative is not None:
        word = f"{word}, one value" if word else "one value, no spread"
    interval = or_nothing(change.compared, _interval, "")
    return Change(value, signed_percent(change.relative), interval, change.judgement, word)


def _interval(found: Compared) -> str:
    if found.low is None or found.high is None:
        return "" if found.p_value is None else f"p={found.p_value:.3f} n={found.count}"
    return f"{signed_percent(found.low - 1)} to {signed_percent(found.high - 1)}"


def _scaling(accounts: Sequence[RunAccount]) -> list[ComparisonRow]:
    """Ranks, and what each keeps of the speed that a rank of the first run has; nothing of runs with as many."""
    ranks = [max(1, len(account.ranks)) for account in accounts]
    if len(set(ranks)) < 2:
        return []
    kept = [Change(or_nothing(value, share, "")) for value in scaling_of(accounts)]
    return [
        ComparisonRow("ranks", [Change(f"{number:,}") for number in ranks]),
        ComparisonRow("scaling efficiency against the first run", kept),
    ]


NOTHING_CHANGED = "No setting, version or hardware that the runs recorded differs."


def changed_table(found: RunComparison) -> FoundTable:
    rows = []
    for one in found.changed:
        kind = "versions" if one.kind == "version" else one.kind
        rows.append([kind, one.key, *("not there" if value is None else value for value in one.values)])
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
    yield from (f"not compared, as {why}: {', '.join(labels)}" for why, labels in reasons.items())
    if any(change is not None and change.compared for one in found.figures for change in one.changes):
        yield "intervals hold the true changes with 95% together; a change outside them is marked better or worse"


def comparison_renderables(found: RunComparison, accounts: Sequence[RunAccount]) -> list[RenderableType]:
    names = Table.grid(padding=(0, 2, 0, 0))
    for side in found.sides:
        names.add_row(Text(side.letter, "bold"), Text(side.name), Text(", ".join(side.directories), "dim"))
    changed = changed_table(found)
    nothing = Text(NOTHING_CHANGED, "dim")
    parts: list[RenderableType] = [names, Text(), drawn(changed) if changed.rows else nothing]
    rows = comparison_rows(found, accounts)
    for place, side in enumerate(found.sides[1:], start=1):
        parts += [Text(), _figures(rows, side.letter, place)]
    parts += [Text(line, "bold red") for line in regression_lines(found)]
    return [*parts, *dim_lines("Notes:", note_lines(found))]


def _figures(rows: Sequence[ComparisonRow], letter: str, place: int) -> Table:
    has_intervals = any(row.sides[place].interval for row in rows)
    headings = ["", "A", letter, "change", *["interval"] * has_intervals, ""]
    made = table(*headings, words=(0, len(headings) - 1))
    for row in rows:
        first, other = row.sides[0], row.sides[place]
        if first.value or other.value:
            style = _STYLES[other.kind]
            interval = [Text(other.interval, "dim")] * has_intervals
            ends = (Text(other.change, style), *interval, Text(other.word, style))
            made.add_row(Text(row.label), first.value or "n/a", other.value or "n/a", *ends)
    return made


def markdown(found: RunComparison, accounts: Sequence[RunAccount], command: str) -> str:
    """For a pull request: regressions first, the figures, then what changed and the notes, folded."""
    names = [f"- **{side.letter}** {side.name} (`{', '.join(side.directories)}`)" for side in found.sides]
    regressions = [f"- **{line}**" for line in regression_lines(found)]
    headings = ["figure", "A"]
    for side in found.sides[1:]:
        headings += [side.letter, "change", "interval", ""]
    rows = []
    for row in comparison_rows(found, accounts):
        cells = [row.label, row.sides[0].value or "n/a"]
        for each in row.sides[1:]:
            word = f"**{each.word}**" if each.kind == "worse" else each.word
            cells += [each.value or "n/a", each.change, each.interval, word]
        rows.append(cells)
    changed = changed_table(found)
    folded = [f"- {line}" for line in note_lines(found)]
    if changed.rows:
        folded = [*markdown_table(changed), "", *folded]
    parts = [[f"### {command}"], regressions, names, markdown_table(FoundTable(headings, rows))]
    parts.append(["<details><summary>What changed, and how it was compared</summary>", "", *folded, "", "</details>"])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
