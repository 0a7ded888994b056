"""A recipe by its variants, as it is printed."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from hf_efficient.diagnosis.engine import diagnose_isolation
from hf_efficient.records.isolation import (
    Isolation,
    IsolationSchedule,
    LoaderAlone,
    MicroBatchLine,
    PauseTimes,
    StepPart,
    TokenisationAlone,
    VariantMeasurement,
    VariantOutcome,
)
from hf_efficient.reporting.isolation import isolation_renderables

SCHEDULE = IsolationSchedule(1000, 10, 50, 100, 2, 4, 1, 0, 4.0, 2, "cpu")


@pytest.fixture
def lines() -> list[str]:
    parts = [
        StepPart("forward", 0.5, None, None, 1, "forward"),
        StepPart("data", 0.0, -0.01, 0.02, 2, "quiet less held_batches", "no difference"),
        StepPart("backward_optimizer", 1.0, 0.9, 1.1, 2, "held_batches less forward"),
        StepPart("evaluation", None, None, None, 0, "pauses", "the disk is full"),
    ]
    variants = [
        VariantOutcome("as_is", "as it is", [VariantMeasurement([0.9, 1.0, 1.1])] * 2),
        VariantOutcome("micro_batch_doubled", "twice the rows", failure="out of device memory: " + "x" * 80),
        VariantOutcome("one_process", "one process", left_out="the recipe trains in one process"),
    ]
    found = Isolation(
        schema_version=1, hf_efficient_version="1", recipe="a-recipe", steps=12, warm_up=3, schedule=SCHEDULE,
        variants=variants, step_seconds=2.0, parts=parts, unexplained_seconds=0.5, tokens_per_second=1234.0,
        pauses=PauseTimes(None, None, None), loader=LoaderAlone(0.002, None, 1.5, 0.001),
        tokenisation=TokenisationAlone(100, 5000, 2.0, 0.1, 50.0, 2500.0),
        micro_batch=MicroBatchLine(0.05, 0.001, 0.25, 100.0, 30, ["as_is"]), forward_without_graph_seconds=0.4,
        price_usd_per_hour=None, notes=["a run also plans once, before its first step"],
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=80)
    for part in isolation_renderables(dataclasses.replace(found, diagnosis=diagnose_isolation(found))):
        console.print(part)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    "told",
    [
        "An optimizer step of a-recipe: 2.00 s, 1,234 tokens/s with padding",
        "model forward 500 ms 25.0%",
        "data no difference -10.0 ms to 20.0 ms",
        "backward and optimizer 1.00 s 50.0% █████ 900 ms to 1.10 s",
        "evaluations not known",
        "evaluations: the disk is full",
        "unexplained 500 ms 25.0%",
        "in all 2.00 s 100.0%",
        "the loader alone 2.00 ms for the batches of a step",
        "tokenisation alone 50 examples/s, 2,500 tokens/s",
        "a micro-batch 50.0 ms before it holds a token, 20% of its 250 ms",
        "as_is 2 1.00 s as it is",
        "micro_batch_doubled 0 failed: out of device memory",
        "one_process left out: the recipe trains in one process",
        "A run also plans once, before its first step.",
    ],
)
def test_a_line_in_80_columns(lines, told):
    assert max(len(one) for one in lines) <= 80
    assert any(" ".join(one.split()).startswith(told) for one in lines)


def test_the_diagnosis_follows(lines):
    text = " ".join(" ".join(lines).split())
    assert "No cause is clear: 25% of a step is unexplained." in text
    assert "Nothing to fix" not in text
    assert "Not judged: evaluations_cost: evaluation: the disk is full" in text
