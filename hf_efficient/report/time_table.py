"""Where the time of a run went, as a table on a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from hf_efficient.records import TimeAccount
from hf_efficient.report.phases import phase_label

__all__ = ["time_table"]

_BAR = 24


def time_table(time: TimeAccount, most: int | None = None) -> Table:
    """A line per phase, what no phase claimed, and the sum.

    Args:
        time: of the run.
        most: how many phases are shown, the longest, in the order in which a run goes through them; the others are put
            together. None: all.
    """
    wall = time.wall_seconds
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("where the time went", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for label, value in [*_rows(time, most), ("unattributed", time.unattributed_seconds)]:
        part = value / wall if wall > 0 else 0.0
        style = "dim" if label == "unattributed" else ""
        bar = "█" * round(_BAR * min(max(part, 0.0), 1.0))
        table.add_row(Text(label, style), f"{value:.2f}", f"{100 * part:.1f}%", Text(bar, "cyan"))
    table.add_row(Text("in all", "bold"), f"{wall:.2f}", "100.0%" if wall > 0 else "", "")
    return table


def _rows(time: TimeAccount, most: int | None) -> list[tuple[str, float]]:
    phases = time.phase_seconds
    shown = set(phases) if most is None else set(sorted(phases, key=lambda name: -phases[name])[:most])
    rows = [(phase_label(name), value) for name, value in phases.items() if name in shown]
    others = sum(value for name, value in phases.items() if name not in shown)
    return [*rows, ("other phases", others)] if len(shown) < len(phases) else rows
