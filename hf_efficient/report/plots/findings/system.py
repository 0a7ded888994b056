"""The machine over the time of a run, where a finding says that it held the run back."""

from __future__ import annotations

import dataclasses

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.system.cores import cores_figure
from hf_efficient.report.plots.system.gpu import gpu_figure
from hf_efficient.report.run_data import RunData

__all__ = ["cores_evidence", "gpu_evidence"]


def cores_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Who kept the cores busy; None where nobody looked.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
    """
    found = None if run.series is None else cores_figure(run.account, run.series, run.cpus, name)
    return None if found is None else dataclasses.replace(found, height=260, selectable=False)


def gpu_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """The GPU that was held back longest; None where none was.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
    """
    if run.series is None:
        return None
    held = {gpu: sum(map(sum, reasons.values())) for gpu, reasons in run.series.system.throttled.items()}
    worst = max(held, key=lambda gpu: held[gpu], default=None)
    found = None if worst is None else gpu_figure(run.account, run.series, worst, name)
    return None if found is None else dataclasses.replace(found, selectable=False)
