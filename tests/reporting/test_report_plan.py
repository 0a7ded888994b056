"""A plan on a terminal and as a page."""

import dataclasses

import pytest
from page_reader import Page, check_whole, printed
from sample_plan import ADVICE, FITS, MEMORY, PLAN, TOO_SMALL

from hf_efficient.records.plan import PlannedBatching, PlannedData, PlannedLargest, PlannedRanks
from hf_efficient.reporting import plan as words
from hf_efficient.reporting.html.compare_page import plan_page, planned_tiles


def planned(plan, width=120, **more):
    return printed(*words.plan_renderables(plan, **more), width=width)


def test_a_plan():
    lines = planned(PLAN)
    assert "42.00 million of 8.00 billion parameters are trained (lora)." in lines
    assert "A step is 8 micro-batches of 2 rows of 2,048 tokens: 32,768 tokens and 1.77 PFLOP." in lines
    peak = next(line for line in lines if line.startswith("Memory:"))
    assert peak.startswith("Memory: 20.00 GiB allocated at the peak, in the backward of every step after the first, in")
    assert "besides, 3.00 GiB of paged optimizer state" in " ".join(lines)
    assert [line.split() for line in lines if line.startswith("  weights")] == [["weights", "15.00", "GiB", "75%"]]
    assert not any(line.startswith("  rest") for line in lines)  # one byte
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("L4 ", "T4 "))}
    assert " ".join(rows["L4"]) == "* 21.5 22.0 yes 2.00 s 16,384 0.80 1.5 1.20 0.64 0.10 0.048"
    assert " ".join(rows["T4"]) == "21.5 14.5 no n/a n/a 0.80 1.5 1.20 n/a 0.10 0.048 7.0 GiB short"
    assert "* none of the others that fit is at least as fast and as cheap" in lines
    assert lines[-3:-1] == ["- every row is long", "- T4: no time"]
    assert lines[-1].startswith("Estimates at list prices. --notes adds")
    noted = planned(PLAN, notes=True)
    assert "- spot: a save writes 256.0 MiB in 2.05 s; train.save_steps that costs least: 40 on L4" in noted


SHORT = dataclasses.replace(TOO_SMALL, needed_bytes=2**30, name="V100")
GIB = 2**30
TIGHT = dataclasses.replace(
    FITS, tight=True, needed_range_bytes=(21 * GIB, int(22.5 * GIB)), tokens_per_second_range=(8192.0, 20480.0)
)
NEARLY = dataclasses.replace(TIGHT, fits=False, needed_bytes=int(22.2 * GIB))
ANSWERS = {
    "Tight on L4: needs 21.5 ± 1.0 of 22.0 GiB; $1.20, 1 h 30 min, 16,384 tokens/s (-50% to +25%)": dataclasses.replace(
        PLAN, gpus=[TIGHT]
    ),
    "Does not fit L4: 0.2 GiB short of 22.2 ± 1.2, which is tight": dataclasses.replace(PLAN, gpus=[NEARLY]),
    "Fits 1 of 2 GPUs; cheapest L4 at $1.20, fastest L4 in 1 h 30 min": PLAN,
    "Fits L4: needs 21.5 of 22.0 GiB; $1.20, 1 h 30 min": dataclasses.replace(PLAN, gpus=[FITS]),
    "Does not fit T4: 7.0 GiB short": dataclasses.replace(PLAN, gpus=[TOO_SMALL]),
    "Does not fit V100: no bfloat16": dataclasses.replace(PLAN, gpus=[SHORT]),
    "Does not fit any of 2 GPUs: 7.0 GiB short": dataclasses.replace(PLAN, gpus=[TOO_SMALL, TOO_SMALL]),
}


@pytest.mark.parametrize(("told", "plan"), ANSWERS.items())
def test_the_first_line_is_the_answer(told, plan):
    assert planned(plan)[0] == told


def test_a_tight_one_in_the_table():
    (row,) = (line for line in planned(dataclasses.replace(PLAN, gpus=[TIGHT])) if line.startswith("L4"))
    assert row.split()[:5] == ["L4", "*", "21.5", "22.0", "tight"]


def head_of(plan, width=120):
    (head,) = (line for line in planned(plan, width) if line.startswith("accelerator"))
    return head.split()[1:]


def test_a_plan_that_knows_no_steps_tells_of_a_million_tokens():
    assert head_of(PLAN)[-6:] == ["hours", "USD", "spot", "kWh", "kgCO2e", "why"]
    without = dataclasses.replace(PLAN, steps=None)
    assert head_of(without)[-5:] == ["USD/M", "spot/M", "kWh/M", "gCO2e/M", "why"]
    (row,) = (line for line in planned(without) if line.startswith("L4"))
    assert row.split()[-4:] == ["0.014", "0.0072", "0.0042", "2.0"]


def test_what_is_left_out_where_the_terminal_is_narrow():
    assert "step" in head_of(PLAN, 100)
    named = dataclasses.replace(PLAN, gpus=[dataclasses.replace(FITS, name="RTX PRO 6000 Blackwell")])
    assert "step" not in head_of(named, 80)
    assert "USD/h" in head_of(named, 80)
    assert head_of(named, 60) == ["needs", "has", "GiB", "fits", "hours", "USD", "spot"]


def test_advice():
    assert printed(*words.advice_renderables(ADVICE), width=100) == [
        "", "To fit L4 (22.0 GiB), each change simulated, the best first", " GiB          step  tokens/s  change",
        "30.0    no  4.00 s     8,192  as it is", "20.0  fits  5.25 s     6,242  train.gradient_checkpointing=true",
        "                              + of each layer only the input is kept for the backward",
        "                              - each layer's forward is computed twice",
        "25.2    no     n/a       n/a  adapter.method=qlora", "                              train.max_length=1024",
        "                              changes what is learned", "                              + less memory",
        "                              - a rounded base", "- left out: train.optim=sgd: why not",
    ]  # fmt: skip


MOST = [
    (
        PlannedLargest("L4", 3, 896, 64),
        "3 rows of 2,048 tokens: train.per_device_train_batch_size=3",
        "2 rows of 896 tokens: train.max_length=896",
    ),
    (
        PlannedLargest("L4", 512, 4096, 64, rows_bounded=True, tokens_bounded=True),
        "512 or more rows of 2,048 tokens: train.per_device_train_batch_size=512",
        "2 rows of 4,096 tokens, as far as the model's positions go: train.max_length=4096",
    ),
    (PlannedLargest("L4", 0, 0, 64), "not even one row of 2,048 tokens", "not even 2 rows of 64 tokens"),
]


@pytest.mark.parametrize(("largest", "rows", "tokens"), MOST)
def test_the_most_that_fits(largest, rows, tokens):
    told = ["", "The most that fits L4", f"  {rows}", f"  {tokens}"]
    assert printed(*words.largest_renderables(largest, 2, 2048), width=100) == told


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut(width):
    lines = printed(*words.plan_renderables(PLAN), *words.advice_renderables(ADVICE), width=width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)


def test_several_gpus():
    ranks = PlannedRanks(count=4, strategy="zero3", offloaded=["optimizer", "parameters"], host_bytes=12 * 2**30)
    gpu = dataclasses.replace(FITS, bound_shares={"math": 0.75, "communication": 0.25})
    plan = dataclasses.replace(PLAN, ranks=ranks, gpus=[gpu])
    lines = planned(plan)
    step = "8 micro-batches of 2 rows of 2,048 tokens on each of 4 GPUs"
    assert f"A step is {step}: 131,072 tokens and 1.77 PFLOP." in lines
    assert "On 4 GPUs with ZeRO-3; memory is that of each." in lines
    assert "Host memory: 12.00 GiB in the machine for the optimizer state and weights of all." in lines
    assert head_of(plan)[-6:] == ["comm", "hours", "USD", "spot", "kWh", "kgCO2e"]
    (row,) = (line for line in lines if line.startswith("L4"))
    assert row.split()[-6] == "25%"


KINDS = [
    PlannedBatching("as they come", {}, True, 744_204, 0.281, 1_326),
    PlannedBatching("packed", {}, False, 534_723, 0.0, 557),
]


def test_a_sentence_and_a_table():
    assert printed(*words.data_renderables(PlannedData(5_301, 534_723, 256, 0.25, 64, 2, KINDS)), width=140) == [
        "",
        "Data: 5,301 examples, 534,723 tokens in all, 256 in the longest; 25% of a step is padding. "
        "64 rows are evaluated 2 times.",
        "an epoch's batches           positions  padding  steps",
        "  as they come (the recipe)    744,204    28.1%  1,326",
        "  packed                       534,723       0%    557",
    ]


def test_rows_of_packed_examples_are_said_to_be_that():
    data = PlannedData(30, 3_000, 256, 0.0, 1, 1, [], evaluation_examples=3)
    assert words.data_sentence(data).endswith(" 1 row of 3 packed examples is evaluated once.")


def fitting(name, every):
    return dataclasses.replace(FITS, name=name, spot=dataclasses.replace(FITS.spot, save_every_steps=every))


COSTS_LEAST = {
    None: "train.save_steps that costs least: 1,234 on L4, 40 on A10",
    1234: "train.save_steps that costs least: 40 on A10; no save before the end of the run costs least on L4",
    40: "no save before the end of the run costs least on L4, A10",
}


@pytest.mark.parametrize(("steps", "told"), COSTS_LEAST.items())
def test_after_how_many_steps_or_only_at_the_end(steps, told):
    save = "spot: a save writes 256.0 MiB in 2.05 s; "
    assert words.spot_saves([fitting("L4", 1234), fitting("A10", 40)], steps) == save + told


ADVISED = dataclasses.replace(PLAN, advice=ADVICE, largest=PlannedLargest("L4", 12, 8192, 64))
BARE = dataclasses.replace(PLAN, gpus=[], memory=dataclasses.replace(MEMORY, timeline=None), steps=None)
PLANS = {"plan": PLAN, "advised": ADVISED, "bare": BARE, "no steps": dataclasses.replace(PLAN, steps=None)}


def read(plan):
    return Page(plan_page(plan, "hf-efficient plan it"))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_page_is_whole_and_names_no_address(plan):
    page = read(plan)
    check_whole(page)
    for _, attributes in page.elements:
        assert (attributes.get("src") or "").startswith("data:") or "src" not in attributes


def test_the_headline():
    assert {tile.label: (tile.value, tile.note) for tile in planned_tiles(PLAN)} == {
        "Peak allocated": ("20.00 GiB", "in the backward of later steps"),
        "Tokens in a step": ("32,768", "8 micro-batches of 2 rows of 2,048 tokens, 1.77 PFLOP"),
        "Trained parameters": ("42.00 million", "of 8.00 billion (lora)"),
    }
    assert "Fits 1 of 2 GPUs; cheapest L4 at $1.20, fastest L4 in 1 h 30 min" in read(PLAN).said


def test_memory_over_the_steps_and_its_phases():
    """What is computed again counts as the backward that asks for it."""
    held = read(PLAN).data["figures"]["planned-memory"]
    areas = {trace["name"]: trace["y"] for trace in held["traces"] if trace["type"] == "scatter"}
    assert areas == {"weights": [15.0] * 5, "logits": [0.0, 1.0, 5.0, 0.0, 1.0]}
    strip = [(trace["name"], trace["x"]) for trace in held["traces"] if trace["type"] == "bar"]
    assert strip == [("forward", [10]), ("backward", [30]), ("optimizer", [15]), ("forward", [15])]
    assert held["layout"]["shapes"][0]["x0"] == 60


def test_time_against_money():
    dear = dataclasses.replace(FITS, name="A10", run_seconds=7200.0, run_usd=3.0, on_frontier=False, spot=None)
    figure = read(dataclasses.replace(PLAN, gpus=[FITS, dear, TOO_SMALL])).data["figures"]["time-money"]
    drawn = {trace["name"]: (trace["text"], trace["x"], trace["y"]) for trace in figure["traces"]}
    points = {name: list(zip(*columns, strict=True)) for name, columns in drawn.items()}
    assert points == {
        "the best choices": [("L4", 1.5, 1.2)],
        "others, on demand": [("A10", 2.0, 3.0)],
        "on spot machines": [("L4", 1.59, 0.636)],
    }
    assert figure["layout"]["xaxis"]["title"]["text"] == "hours of the run"


def test_accelerators_advice_and_assumptions_are_told():
    said = read(ADVISED).said
    for told in (
        "L4 best 21.5 22.0 2.00 s 16,384 0.80 1.5 1.20 0.64 0.10 0.048 somebody, 2026-11-20",
        "T4 does not fit 21.5 14.5 n/a n/a 0.80 1.5 1.20 n/a 0.10 0.048",
        "adapter.method=qlora train.max_length=1024 changes what is learned",
        "12 rows of 2,048 tokens: train.per_device_train_batch_size=12",
        "Again: hf-efficient plan it",
        "logits 2.00 GiB 4,096 x 131,072 float32 lm_head",
    ):
        assert told in said, told
