"""Where the time went."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.account.groups import grouped
from hf_efficient.records import RunAccount
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.figure import Figure, Missing
from hf_efficient.report.plots.step_phases import step_phases
from hf_efficient.report.plots.time_bar import time_bar
from hf_efficient.report.run_data import RunData

__all__ = ["PhaseRow", "phase_rows", "time_section"]


@dataclass(frozen=True)
class PhaseRow:
    """A line of a table by phase.

    Attributes:
        kind: ``group``: a part of the run; ``part``: a phase of one; ``alone``: the only phase of its part.
        label: in words.
        color: None for a part of the run.
        seconds: of the wall time.
        device_seconds: of the device's; None where it is not known.
    """

    kind: str
    label: str
    color: str | None
    seconds: float
    device_seconds: float | None = None


def time_section(run: RunData) -> Section:
    """Over the run and per step."""
    time = run.account.time
    figures: list[Figure | Missing] = [time_bar(time)]
    if run.series is None:
        figures.append(Missing("Per step", "only run.json was kept of this run, not its records"))
    else:
        figures.append(step_phases(run.series.steps, run.account.steps))
    context = {
        "rows": phase_rows(run.account),
        "wall": time.wall_seconds,
        "first_step": time.time_to_first_step_seconds,
        "has_device": time.device_seconds is not None,
        "exposed": (time.device_seconds or {}).get("exposed_wait"),
    }
    return Section("time", "Where the time went", figures, context, "Time")


def phase_rows(account: RunAccount) -> list[PhaseRow]:
    """Parts of the run, each with its phases below it; a part of one phase is told as the phase alone."""
    time, device = account.time, account.time.device_seconds or {}
    rows = []
    for group in grouped({**time.phase_seconds, "unattributed": time.unattributed_seconds}):
        alone = len(group.phases) == 1
        if not alone:
            rows.append(PhaseRow("group", group.name, None, group.total))
        rows += [
            PhaseRow("alone" if alone else "part", phase_label(name), phase_color(name), seconds, device.get(name))
            for name, seconds in group.phases.items()
        ]
    return rows
