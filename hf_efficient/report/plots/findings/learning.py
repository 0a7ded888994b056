"""How a run learned, where a finding says that it did not."""

from __future__ import annotations

import dataclasses

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.training_curve import training_curve
from hf_efficient.report.run_data import RunData

__all__ = ["learning_evidence"]


def learning_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Loss, learning rate and gradient norm as logged; None where none was.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
    """
    if run.series is None:
        return None
    found = training_curve(run.series.steps, run.account.evaluations)
    return dataclasses.replace(found, id=name, height=340, selectable=False) if isinstance(found, Figure) else None
