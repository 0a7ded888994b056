"""The positions that a finding is about, step by step: what was computed, and what of it counts."""

from __future__ import annotations

import dataclasses

from hf_efficient.records.findings import Finding
from hf_efficient.report.plots.figure import Figure
from hf_efficient.report.plots.tokens import step_tokens
from hf_efficient.report.run_data import RunData

__all__ = ["token_evidence"]


def token_evidence(finding: Finding, run: RunData, name: str, *, kinds: tuple[str, ...]) -> Figure | None:
    """Tokens per step of two kinds, one within the other.

    Args:
        finding: of the run.
        run: with its series.
        name: id of the figure.
        kinds: ``processed``, ``non_padding``, ``loss_bearing``: the outer one first.

    Returns:
        None where they were not counted.
    """
    if run.series is None:
        return None
    found = step_tokens(run.series.steps, run.account.tokens, kinds, name)
    if not isinstance(found, Figure) or len(found.traces) != len(kinds):
        return None
    return dataclasses.replace(found, selectable=False)
