"""What the deeper instruments found, and what each of them cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hf_efficient.records import MemorySnapshot, OperatorTable, ProfileAccount
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.profile_rows import instrument_rows, operator_cells, operator_headings, operator_summary
from hf_efficient.report.run_data import RunData
from hf_efficient.report.snapshot_rows import SITE_HEADINGS, site_cells, snapshot_summary
from hf_efficient.units import size

__all__ = ["profile_section"]

_MOST_ROWS = 25


@dataclass(frozen=True)
class _Found:
    """A table of the page: its heading, a sentence, columns (texts are on the left), rows, what is left out."""

    title: str
    summary: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: str = ""


def profile_section(run: RunData) -> Section | None:
    """A table per instrument that found something, and what they cost; None of a run without instruments."""
    profile = run.account.profile
    if profile is None:
        return None
    context = {"tables": list(_tables(profile)), "instruments": instrument_rows(profile.instruments)}
    return Section("profile", "Profile", context=context)


def _tables(profile: ProfileAccount) -> Iterator[_Found]:
    if profile.operators is not None and profile.operators.operators:
        yield _operators(profile.operators)
    yield from map(_snapshot, profile.memory)


def _operators(table: OperatorTable) -> _Found:
    shown = table.operators[:_MOST_ROWS]
    more = len(table.operators) - len(shown) + table.left_out
    left_out = f"{more:,} rows with less time are left out here." if more else ""
    rows = [operator_cells(table, operator) for operator in shown]
    return _Found("Operators", operator_summary(table), operator_headings(table), rows, left_out)


def _snapshot(snapshot: MemorySnapshot) -> _Found:
    shown = snapshot.sites[:_MOST_ROWS]
    more = snapshot.other_sites_bytes + sum(site.bytes for site in snapshot.sites[_MOST_ROWS:])
    left_out = f"{size(more)} of other lines are left out here." if more else ""
    rows = [site_cells(snapshot, site) for site in shown]
    return _Found("CUDA memory", snapshot_summary(snapshot), SITE_HEADINGS, rows, left_out)
