"""What was proven before the run."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.preflight_words import preflight_words
from hf_efficient.report.run_data import RunData

__all__ = ["preflight_section"]


def preflight_section(run: RunData) -> Section | None:
    """A line each for memory, save and load, disk; None of a run that was not proven."""
    found = run.account.preflight
    if found is None:
        return None
    return Section("preflight", "Proven before the run", context={"lines": preflight_words(found)}, short="Preflight")
