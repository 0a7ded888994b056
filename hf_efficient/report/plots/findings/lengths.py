"""How long the sequences were, where a finding says that they were cut."""

from __future__ import annotations

import dataclasses

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.lengths import sequence_lengths
from hf_efficient.report.run_data import RunData

__all__ = ["length_evidence"]


def length_evidence(finding: Finding, run: RunData, name: str) -> Figure | None:
    """Documents by length; None where they were not counted.

    Args:
        finding: of the run.
        run: with its account.
        name: id of the figure.
    """
    found = sequence_lengths(run.account.sequences)
    return dataclasses.replace(found, id=name) if isinstance(found, Figure) else None
