"""What was not measured."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.run_data import RunData

__all__ = ["gaps"]


def gaps(run: RunData) -> Section:
    """Each with its reason."""
    return Section("gaps", "What was not measured", context={"gaps": run.account.not_measured}, short="Not measured")
