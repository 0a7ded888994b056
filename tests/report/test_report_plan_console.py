"""A plan and its advice on a terminal, from records made by hand."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from hf_efficient.records.plan import (
    Plan,
    PlannedAdvice,
    PlannedChange,
    PlannedGpu,
    PlannedLargest,
    PlannedMemory,
    PlannedOutcome,
    PlannedTensor,
)
from hf_efficient.report.plan_advice import advice_renderables, largest_renderables
from hf_efficient.report.plan_console import plan_renderables

GIB = 2**30
MEMORY = PlannedMemory(
    peak_allocated_bytes=20 * GIB,
    peak_phase="backward",
    peak_module="model.layers.3",
    peak_step=2,
    categories={"weights": 15 * GIB, "logits": 5 * GIB - 1, "rest": 1},
    category_peak_bytes={"weights": 15 * GIB},
    largest=[PlannedTensor(2 * GIB, "logits", "lm_head", "aten::mm", (4096, 131072), "float32")],
    phase_peak_allocated_bytes={"backward": 20 * GIB},
    model_bytes=15 * GIB,
    paged_bytes=3 * GIB,
)
FITS = PlannedGpu(
    name="L4",
    memory_bytes=24 * GIB,
    needed_bytes=int(21.5 * GIB),
    reserved_bytes=21 * GIB,
    fits=True,
    allocation_retries=0,
    step_seconds=2.0,
    tokens_per_second=16384.0,
    bound_shares={"math": 1.0},
    price_usd_per_hour=0.8,
    price_source="somebody, 2026-11-20",
    usd_per_million_tokens=0.0136,
    run_seconds=5400.0,
    run_usd=1.2,
    run_kwh=0.1,
    run_co2e_grams=48.0,
)
TOO_SMALL = dataclasses.replace(
    FITS, name="T4", memory_bytes=16 * GIB, fits=False, step_seconds=None, tokens_per_second=None, notes=["no time"]
)
PLAN = Plan(
    recipe="tiny",
    model="some/model",
    adapter="lora",
    parameters=8_000_000_000,
    trained_parameters=42_000_000,
    micro_batch_rows=2,
    row_tokens=2048,
    micro_batches=8,
    steps=2700,
    flops_per_step=1_770_000_000_000_000,
    memory=MEMORY,
    gpus=[FITS, TOO_SMALL],
    assumptions=["every row is long"],
)
BEFORE = PlannedOutcome(30 * GIB, False, 4.0, 8192.0)
CHANGES = [
    PlannedChange(
        {"train.gradient_checkpointing": True},
        "of each layer only the input is kept for the backward",
        "each layer's forward is computed twice",
        True,
        BEFORE,
        PlannedOutcome(20 * GIB, True, 5.25, 6241.5),
    ),
    PlannedChange(
        {"adapter.method": "qlora", "train.max_length": 1024},
        "less memory",
        "a rounded base",
        False,
        BEFORE,
        PlannedOutcome(int(25.25 * GIB), False, None, None),
    ),
]
ADVICE = PlannedAdvice("L4", 24 * GIB, BEFORE, CHANGES, ["train.optim=sgd: why not"])


def printed(parts, width=100):
    console = Console(width=width, record=True, file=None, highlight=False, color_system=None)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def test_the_peak_may_be_in_an_evaluation():
    memory = dataclasses.replace(MEMORY, peak_phase="evaluation", peak_module="lm_head", paged_bytes=0)
    lines = printed(plan_renderables(dataclasses.replace(PLAN, memory=memory)))
    assert "Memory: 20.00 GiB allocated at the peak, in the evaluation, in lm_head" in lines


def test_a_plan():
    lines = printed(plan_renderables(PLAN), 120)
    assert "42.00 million of 8.00 billion parameters are trained (lora)." in lines
    assert "A step is 8 x 2 x 2,048 = 32,768 tokens and 1.77 PFLOP." in lines
    peak = next(line for line in lines if line.startswith("Memory:"))
    assert peak.startswith("Memory: 20.00 GiB allocated at the peak, in the backward of every step after the first, in")
    assert "besides, 3.00 GiB of paged optimizer state" in " ".join(lines)
    assert [line.split() for line in lines if line.startswith("  weights")] == [["weights", "15.00", "GiB", "75%"]]
    assert not any(line.startswith("  rest") for line in lines)  # one byte
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("L4 ", "T4 "))}
    assert rows["L4"] == ["21.5", "24", "2.00", "s", "16,384", "0.80", "0.014", "1.5", "h", "1.20"]
    assert rows["T4"] == ["21.5", "16", "no", "n/a", "n/a", "0.80", "0.014", "1.5", "h", "1.20"]
    assert lines[-2:] == ["- every row is long", "- T4: no time"]


def test_a_plan_that_knows_no_steps_tells_nothing_of_the_run():
    (head,) = (line for line in printed(plan_renderables(PLAN)) if line.startswith("accelerator"))
    assert head.endswith("run   USD")
    without = dataclasses.replace(PLAN, steps=None)
    (head,) = (line for line in printed(plan_renderables(without)) if line.startswith("accelerator"))
    assert head.endswith("/M tokens")


def test_advice():
    assert printed(advice_renderables(ADVICE)) == [
        "",
        "To fit L4 (24 GiB), each change rehearsed, the best first",
        " GiB          step  tokens/s  change",
        "30.0    no  4.00 s     8,192  as it is",
        "20.0  fits  5.25 s     6,242  train.gradient_checkpointing=true",
        "                              + of each layer only the input is kept for the backward",
        "                              - each layer's forward is computed twice",
        "25.2    no     n/a       n/a  adapter.method=qlora",
        "                              train.max_length=1024",
        "                              changes what is learned",
        "                              + less memory",
        "                              - a rounded base",
        "- left out: train.optim=sgd: why not",
    ]


def test_advice_that_does_not_help():
    lines = printed(advice_renderables(dataclasses.replace(ADVICE, changes=CHANGES[1:], left_out=[])))
    assert lines[-1] == "None of them makes it fit: it takes a smaller model or a larger accelerator."


def test_advice_without_a_change():
    nothing = dataclasses.replace(ADVICE, changes=[], left_out=[])
    assert printed(advice_renderables(nothing)) == [
        "",
        "To fit L4 (24 GiB): no change of the recipe is known that would help.",
    ]


def test_advice_where_it_fits():
    fits = dataclasses.replace(ADVICE, before=dataclasses.replace(BEFORE, fits=True))
    assert printed(advice_renderables(fits))[1] == "To run faster on L4 (24 GiB), each change rehearsed, the best first"


@pytest.mark.parametrize(
    ("largest", "told"),
    [
        (
            PlannedLargest("L4", 3, 896, 64),
            [
                "  3 rows of 2,048 tokens: train.per_device_train_batch_size=3",
                "  2 rows of 896 tokens: train.max_length=896",
            ],
        ),
        (
            PlannedLargest("L4", 512, 4096, 64, rows_bounded=True, tokens_bounded=True),
            [
                "  512 or more rows of 2,048 tokens: train.per_device_train_batch_size=512",
                "  2 rows of 4,096 tokens, as far as the model's positions go: train.max_length=4096",
            ],
        ),
        (PlannedLargest("L4", 0, 0, 64), ["  not even one row of 2,048 tokens", "  not even 2 rows of 64 tokens"]),
    ],
)
def test_the_most_that_fits(largest, told):
    assert printed(largest_renderables(largest, 2, 2048)) == ["", "The most that fits L4", *told]


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut(width):
    lines = printed([*plan_renderables(PLAN), *advice_renderables(ADVICE)], width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
