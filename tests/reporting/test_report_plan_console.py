"""A plan and its advice on a terminal, from records made by hand."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console
from sample_plan import ADVICE, BEFORE, CHANGES, FITS, MEMORY, PLAN, TOO_SMALL

from hf_efficient.records.plan import PlannedLargest, PlannedRanks
from hf_efficient.reporting.plan import advice_renderables, largest_renderables, plan_renderables


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
    assert rows["L4"] == ["*", "21.5", "22.0", "2.00", "s", "16,384", "0.80", "1.5", "1.20", "0.64", "0.10", "0.048"]
    assert rows["T4"] == ["21.5", "14.5", "no", "n/a", "n/a", "0.80", "1.5", "1.20", "n/a", "0.10", "0.048"]
    assert lines[-3:] == [
        "- every row is long",
        "- spot: a save writes 256.0 MiB in 2.05 s; train.save_steps that costs least: 40 on L4",
        "- T4: no time",
    ]
    assert "* none of the others that fit is at least as fast and as cheap" in lines


def head_of(plan, width=120):
    (head,) = (line for line in printed(plan_renderables(plan), width) if line.startswith("accelerator"))
    return head.split()[1:]


def test_a_plan_that_knows_no_steps_tells_of_a_million_tokens():
    assert head_of(PLAN)[-5:] == ["hours", "USD", "spot", "kWh", "kgCO2e"]
    without = dataclasses.replace(PLAN, steps=None)
    assert head_of(without)[-4:] == ["USD/M", "spot/M", "kWh/M", "gCO2e/M"]
    (row,) = (line for line in printed(plan_renderables(without), 120) if line.startswith("L4"))
    assert row.split()[-4:] == ["0.014", "0.0072", "0.0042", "2.0"]


def test_cheap_tokens_differ():
    cheap = dataclasses.replace(FITS, usd_per_million_tokens=0.00055, spot=None)
    dear = dataclasses.replace(cheap, name="A10", usd_per_million_tokens=0.0010)
    lines = printed(plan_renderables(dataclasses.replace(PLAN, steps=None, gpus=[cheap, dear])), 120)
    assert [line.split()[-3] for line in lines if line.startswith(("L4", "A10"))] == ["0.00055", "0.0010"]


def test_on_the_spot_market_there_is_one_price():
    found = dataclasses.replace(PLAN, gpus=[dataclasses.replace(FITS, market="spot")])
    assert head_of(found)[-4:] == ["spot", "USD", "kWh", "kgCO2e"]
    assert head_of(dataclasses.replace(found, steps=None))[-3:] == ["spot/M", "kWh/M", "gCO2e/M"]


def test_no_column_of_spot_where_no_such_price_is_known():
    found = dataclasses.replace(PLAN, gpus=[TOO_SMALL])
    assert head_of(found)[-4:] == ["hours", "USD", "kWh", "kgCO2e"]
    assert not any("spot" in line for line in printed(plan_renderables(found)))


def test_what_is_left_out_where_the_terminal_is_narrow():
    assert "step" in head_of(PLAN, 90)
    named = dataclasses.replace(PLAN, gpus=[dataclasses.replace(FITS, name="RTX PRO 6000 Blackwell")])
    assert "step" not in head_of(named, 80)
    assert "USD/h" in head_of(named, 80)
    assert head_of(named, 60) == ["GiB", "of", "hours", "USD", "spot", "kWh", "kgCO2e"]


def test_advice():
    assert printed(advice_renderables(ADVICE)) == [
        "",
        "To fit L4 (22.0 GiB), each change simulated, the best first",
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
        "To fit L4 (22.0 GiB): no change of the recipe is known that would help.",
    ]


def test_advice_where_it_fits():
    fits = dataclasses.replace(ADVICE, before=dataclasses.replace(BEFORE, fits=True))
    assert (
        printed(advice_renderables(fits))[1] == "To run faster on L4 (22.0 GiB), each change simulated, the best first"
    )


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


def test_several_gpus():
    ranks = PlannedRanks(count=4, strategy="zero3", offloaded=["optimizer", "parameters"], host_bytes=12 * 2**30)
    gpu = dataclasses.replace(FITS, bound_shares={"math": 0.75, "communication": 0.25})
    plan = dataclasses.replace(PLAN, ranks=ranks, gpus=[gpu])
    lines = printed(plan_renderables(plan), 120)
    assert "A step is 4 x 8 x 2 x 2,048 = 131,072 tokens and 1.77 PFLOP." in lines
    assert "On 4 GPUs with ZeRO-3; memory is that of each." in lines
    assert "Host memory: 12.00 GiB in the machine for the optimizer state and weights of all." in lines
    assert head_of(plan)[-6:] == ["comm", "hours", "USD", "spot", "kWh", "kgCO2e"]
    (row,) = (line for line in lines if line.startswith("L4"))
    assert row.split()[-6] == "25%"


def test_what_is_offloaded_to_a_disk():
    ranks = PlannedRanks(4, "zero3", ["optimizer"], host_bytes=0, disk_bytes=12 * 2**30)
    lines = printed(plan_renderables(dataclasses.replace(PLAN, ranks=ranks)), 120)
    assert "NVMe disk: 12.00 GiB in the machine for the optimizer state of all." in lines


def test_one_process_tells_nothing_of_others():
    assert "comm" not in head_of(PLAN)
    assert not any("Host memory" in line for line in printed(plan_renderables(PLAN), 120))
