"""Time, money and energy by phase, beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_efficient.records import PHASES, RunAccount
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, axis
from hf_efficient.units import kilowatt_hours, seconds, usd

__all__ = ["phase_shares"]


def phase_shares(account: RunAccount) -> Figure:
    """A bar each for time and what is known of money and energy, as shares: they need not be alike."""
    time = {**account.time.phase_seconds, "unattributed": account.time.unattributed_seconds}
    rows: list[tuple[str, Mapping[str, float], Callable[[float], str]]] = [("time", time, seconds)]
    if account.money.phase_usd:
        rows.append(("money", account.money.phase_usd, usd))
    if account.energy.phase_joules:
        rows.append(("energy", account.energy.phase_joules, kilowatt_hours))
    rows.reverse()  # plotly.js counts from below
    names = [name for name in PHASES if any(row.get(name, 0) > 0 for _, row, _ in rows)]
    told = " and ".join(name for name, _, _ in reversed(rows[:-1]))
    return Figure(
        "phase-shares",
        "By phase",
        f"Which share of the time, and of the {told}, went to which phase; the table has the figures.",
        [_bar(name, rows) for name in names],
        {
            "barmode": "stack",
            "barnorm": "percent",
            "bargap": 0.3,
            "hovermode": "closest",
            "xaxis": axis("", range=[0, 100], ticksuffix="%", showgrid=False, zeroline=False),
            "yaxis": axis("", fixedrange=True),
        },
        80 + 48 * len(rows),
        zoomable=False,
    )


def _bar(name: str, rows: list[tuple[str, Mapping[str, float], Callable[[float], str]]]) -> dict[str, Any]:
    values = [max(row.get(name, 0.0), 0.0) for _, row, _ in rows]
    return {
        "type": "bar",
        "orientation": "h",
        "name": phase_label(name),
        "y": [label for label, _, _ in rows],
        "x": values,
        "customdata": [tell(value) for value, (_, _, tell) in zip(values, rows, strict=True)],
        "marker": {"color": phase_color(name)},
        "hovertemplate": "%{customdata}, %{x:.3~g}%",
    }
