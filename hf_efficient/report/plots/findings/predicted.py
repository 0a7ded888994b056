"""What the first remedy of a finding is predicted to save."""

from __future__ import annotations

from hf_efficient.records.findings import Finding

__all__ = ["predicted_seconds"]


def predicted_seconds(finding: Finding) -> float | None:
    """Of the loop's time for the same tokens; None where nothing is predicted of it."""
    gain = finding.remedies[0].gain if finding.remedies else None
    return gain.seconds if gain is not None and gain.seconds else None
