"""What the deeper instruments found, and what each of them cost."""

from __future__ import annotations

from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.profile_found import found_tables
from hf_efficient.report.profile_rows import instrument_rows, shared_remark
from hf_efficient.report.run_data import RunData

__all__ = ["profile_section"]

_MOST_ROWS = 25


def profile_section(run: RunData) -> Section | None:
    """A table per instrument that found something, and what they cost; None of a run without instruments."""
    profile = run.account.profile
    if profile is None:
        return None
    context = {
        "tables": list(found_tables(profile, _MOST_ROWS)),
        "instruments": instrument_rows(profile.instruments),
        "remark": shared_remark(profile.instruments),
    }
    return Section("profile", "Profile", context=context)
