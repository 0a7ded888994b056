"""Predicted and observed in words."""

from __future__ import annotations

import io

from rich.console import Console

from hf_efficient.records.account import PlanAccount, PlanFigure
from hf_efficient.reporting.console import plan_table
from hf_efficient.reporting.run_rows import PlanRow, plan_notes, plan_rows

PLAN = PlanAccount(
    "NVIDIA L4",
    8,
    [
        PlanFigure("weights_bytes", 2**30, 2**30, 0.0),
        PlanFigure("optimizer_state_bytes", 1000004, 1000000, 4e-6),
        PlanFigure("step_seconds", None, 0.5, None, "not calibrated"),
        PlanFigure("training_seconds", None, 4.0, None, "not calibrated"),
        PlanFigure("training_cost_usd", 0.3, 0.4, -0.25),
        PlanFigure("training_energy_joules", None, None, None, "no meter"),
    ],
)


def test_rows():
    assert plan_rows(PLAN) == [
        PlanRow("weights", "1.00 GiB", "1.00 GiB", "exact"),
        PlanRow("optimizer state", "976.6 KiB", "976.6 KiB", "+0.0%"),
        PlanRow("mean step", "n/a", "500 ms", ""),
        PlanRow("training loop", "n/a", "4.0 s", ""),
        PlanRow("cost of the training loop", "$0.30", "$0.40", "-25.0%"),
    ]


def test_a_remark_is_made_once():
    assert plan_notes(PLAN) == ["mean step, training loop: not calibrated"]


def test_the_table():
    console = Console(width=90, record=True, file=io.StringIO())
    for part in plan_table(PLAN):
        console.print(part)
    text = console.export_text()
    assert text.count("not calibrated") == 1
    assert "  mean step, training loop: not calibrated" in text
    assert "no meter" not in text
