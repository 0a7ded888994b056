"""What the page needs to tell the figures of a span that is selected: sums by bucket."""

from __future__ import annotations

from typing import Any

from hf_efficient.records.series import StepSeries
from hf_efficient.report.phases import phase_color, phase_label
from hf_efficient.report.plots.run_axes import step_axis

__all__ = ["span_data"]


def span_data(steps: StepSeries) -> dict[str, Any] | None:
    """Columns by bucket, with their places on both axes of a run; None without steps."""
    if not len(steps):
        return None
    where = step_axis(steps)
    return {
        "start": where.starts,
        "end": where.ends,
        "at": steps.started_at_seconds,
        "wall": steps.wall_seconds,
        "training": [mean * count for mean, count in zip(steps.step_seconds_mean, steps.steps, strict=True)],
        "steps": steps.steps,
        "first": steps.first_step,
        "last": steps.last_step,
        "tokens": steps.non_padding_tokens,
        "processed": steps.processed_tokens,
        "loss": steps.loss,
        "phases": [
            {"label": phase_label(name), "color": phase_color(name), "seconds": sums}
            for name, sums in steps.phase_seconds.items()
            if any(sums)
        ],
    }
