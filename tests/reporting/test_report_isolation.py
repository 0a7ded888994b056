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
def isolation() -> Isolation:
    found = Isolation(
        schema_version=1, hf_efficient_version="1", recipe="a-recipe", steps=12, warm_up=3, schedule=SCHEDULE,
        variants=[
            VariantOutcome("as_is", "as it is", [VariantMeasurement([0.9, 1.0, 1.1])] * 2),
            VariantOutcome("micro_batch_doubled", "twice the rows", failure="out of device memory: " + "x" * 80),
            VariantOutcome("one_process", "one process", left_out="the recipe trains in one process"),
        ],
        step_seconds=2.0,
        parts=[
            StepPart("forward", 0.5, None, None, 1, "forward"),
            StepPart("data", 0.0, -0.01, 0.02, 2, "quiet less held_batches", "no difference"),
            StepPart("backward_optimizer", 1.0, 0.9, 1.1, 2, "held_batches less forward"),
            StepPart("evaluation", None, None, None, 0, "pauses", "the disk is full"),
        ],
        unexplained_seconds=0.5, tokens_per_second=1234.0, pauses=PauseTimes(None, None, None),
        loader=LoaderAlone(0.002, None, 1.5, 0.001),
        tokenisation=TokenisationAlone(100, 5000, 2.0, 0.1, 50.0, 2500.0),
        micro_batch=MicroBatchLine(0.05, 0.001, 0.25, 100.0, 30, ["as_is"]), forward_without_graph_seconds=0.4,
        price_usd_per_hour=None, notes=["a run also plans once, before its first step"],
    )  # fmt: skip
    return dataclasses.replace(found, diagnosis=diagnose_isolation(found))


@pytest.fixture
def lines(isolation) -> list[str]:
    return printed(isolation)


def printed(found: Isolation) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    for part in isolation_renderables(found):
        console.print(part)
    return console.file.getvalue().splitlines()


def line(lines, start) -> str:
    return " ".join(next(one for one in lines if one.startswith(start)).split())


def test_it_fits_80_columns(lines):
    assert max(len(one) for one in lines) <= 80


def test_parts_with_their_shares_and_spreads(lines):
    assert line(lines, "An optimizer step of a-recipe") == (
        "An optimizer step of a-recipe: 2.00 s, 1,234 tokens/s with padding"
    )
    assert line(lines, "model forward").startswith("model forward 500 ms 25.0%")
    assert line(lines, "data") == "data no difference -10.0 ms to 20.0 ms"
    assert line(lines, "backward and optimizer").endswith("900 ms to 1.10 s")
    assert line(lines, "evaluations") == "evaluations not known"
    assert "evaluations: the disk is full" in lines
    assert any(one.startswith("backward and optimizer  ") for one in lines)
    assert line(lines, "unexplained").startswith("unexplained 500 ms 25.0%")
    assert line(lines, "in all") == "in all 2.00 s 100.0%"


def test_what_was_measured_by_itself(lines):
    assert line(lines, "the loader alone").startswith("the loader alone 2.00 ms for the batches of a step")
    assert line(lines, "tokenisation alone").startswith("tokenisation alone 50 examples/s, 2,500 tokens/s")
    assert line(lines, "a micro-batch").startswith("a micro-batch 50.0 ms before it holds a token, 20% of its 250 ms")


def test_variants_that_failed_or_do_not_apply_say_why(lines):
    assert line(lines, "as_is") == "as_is 2 1.00 s as it is"
    assert line(lines, "micro_batch_doubled").startswith("micro_batch_doubled 0 failed: out of device memory")
    assert line(lines, "one_process") == "one_process left out: the recipe trains in one process"


def test_notes_and_the_diagnosis_follow(lines):
    assert "A run also plans once, before its first step." in lines
    text = " ".join(" ".join(lines).split())
    assert "No cause is clear: 25% of a step is unexplained." in text
    assert "Nothing to fix" not in text
    assert "Not judged: evaluations_cost: evaluation: the disk is full" in text
