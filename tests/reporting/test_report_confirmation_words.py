"""What became of a prediction, as it is printed and on the page."""

from __future__ import annotations

import dataclasses
import io

import pytest
from page_reader import Page
from rich.console import Console
from sample_findings import healthy

from hf_efficient.records.findings import Confirmation
from hf_efficient.reporting.diagnosis import diagnosis_renderables, told_confirmation
from hf_efficient.reporting.html.run_page import run_page

CAME = Confirmation("data_transform", "out/slow", "time", 0.44, 0.41, 0.03, "confirmed")


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (CAME, "data_transform: 44% less time per token predicted, 41% ±3% came"),
        (
            Confirmation("saves_cost", "", "time", 0.44, -0.02, 0.05, "retracted", "no difference beyond the spread"),
            "saves_cost: 44% less time per token predicted, 2% ±5% more came: no difference beyond the spread",
        ),
        (
            Confirmation("saves_cost", "", "time", 0.44, None, None, "unknown", "this run has other data"),
            "saves_cost: 44% less time per token predicted: this run has other data",
        ),
        (
            Confirmation("logits_spike", "", "memory", 2 * 2**30, 2**30, None, "confirmed"),
            "logits_spike: 2.00 GiB less at the peak predicted, 1.00 GiB came",
        ),
        (
            Confirmation("scaler_skips", "", "finding", None, None, None, "confirmed"),
            "scaler_skips: the finding is gone",
        ),
        (
            Confirmation("scaler_skips", "", "finding", None, None, None, "retracted", "the finding is still there"),
            "scaler_skips: the finding is still there",
        ),
    ],
)
def test_a_confirmation_in_words(held, told):
    assert told_confirmation(held) == told


@pytest.mark.parametrize("evidence", [True, False])
def test_it_stands_above_the_findings_on_a_terminal(full_run, evidence):
    run = healthy(full_run)
    console = Console(file=io.StringIO(), width=200)
    for part in diagnosis_renderables(dataclasses.replace(run.diagnosis, confirmations=[CAME]), evidence=evidence):
        console.print(part)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "Confirmed: data_transform: 44% less time per token predicted, 41% ±3% came."
    assert lines[1] == "Nothing to fix."


def test_it_stands_above_the_findings_on_the_page(full_run):
    run = healthy(full_run)
    held = dataclasses.replace(run, diagnosis=dataclasses.replace(run.diagnosis, confirmations=[CAME]))
    said = Page(run_page(held)).said
    told = "Findings Confirmed data_transform: 44 % less time per token predicted, 41 % ±3 % came"
    assert f"{told} predicted from out/slow Nothing to fix." in said
    assert "Confirmed" not in Page(run_page(run)).said
