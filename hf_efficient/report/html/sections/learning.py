"""Loss, learning rate, gradient norm."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plots.figure import Figure, Missing
from hf_efficient.report.plots.training_curve import training_curve
from hf_efficient.report.run_data import RunData

__all__ = ["learning"]


def learning(run: RunData) -> Section:
    """One plot."""
    figure: Figure | Missing
    if run.series is None:
        figure = Missing("Loss", "only run.json was kept of this run, not its records")
    else:
        figure = training_curve(run.series.steps, run.account.evaluations)
    return Section("learning", "Loss and learning rate", [figure], short="Loss", template="figures")
