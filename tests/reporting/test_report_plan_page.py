"""The page of a plan as text: what it tells, and what it does without."""

from __future__ import annotations

import dataclasses

import pytest
from hostile import IMAGE, SCRIPT
from page_reader import Page
from sample_plan import ADVICE, FITS, MEMORY, PLAN, TOO_SMALL

from hf_efficient.records.plan import PlannedBatching, PlannedData, PlannedLargest, PlannedRanks
from hf_efficient.reporting.html.plan_page import plan_page, planned_tiles

ADVISED = dataclasses.replace(PLAN, advice=ADVICE, largest=PlannedLargest("L4", 12, 8192, 64))
BARE = dataclasses.replace(PLAN, gpus=[], memory=dataclasses.replace(MEMORY, timeline=None), steps=None)
PLANS = {"plan": PLAN, "advised": ADVISED, "bare": BARE, "no steps": dataclasses.replace(PLAN, steps=None)}


def read(plan):
    return Page(plan_page(plan, "hf-efficient plan it"))


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_every_page_is_whole_and_names_no_address(plan):
    page = read(plan)
    assert len(page.ids()) == len(set(page.ids()))
    assert sorted(page.data["figures"]) == sorted(page.ids("figure"))
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert all(link.removeprefix("#") in page.ids() for link in links)
    tables = [tag for tag, _ in page.elements if tag in ("table", "caption")]
    assert tables.count("table") == tables.count("caption") > 1
    for _, attributes in page.elements:
        assert (attributes.get("src") or "").startswith("data:") or "src" not in attributes


def tiles(plan):
    return {tile.label: (tile.value, tile.note) for tile in planned_tiles(plan)}


def test_the_headline_of_several():
    assert tiles(PLAN) == {
        "Fits": ("1 of 2", "the smallest is L4 with 22.0 GiB"),
        "Peak allocated": ("20.00 GiB", "in the backward of later steps"),
        "Fastest": ("1 h 30 min", "2,700 steps on L4, 2.00 s a step"),
        "Cheapest": ("$1.20", "L4, 1 h 30 min; $0.014 per million tokens"),
        "Cheapest on spot": ("$0.64", "L4, saved every 40 steps, 6% more time"),
        "Least energy": ("0.1 kWh", "on L4, 48 g CO₂e"),
        "Tokens in a step": ("32,768", "8 x 2 x 2,048, 1.77 PFLOP"),
        "Trained parameters": ("42.00 million", "of 8.00 billion (lora)"),
    }


def test_the_headline_of_several_gpus():
    ranks = PlannedRanks(count=4, strategy="fsdp2", offloaded=["parameters"], host_bytes=12 * 2**30)
    found = tiles(dataclasses.replace(PLAN, ranks=ranks))
    assert found["Tokens in a step"] == ("131,072", "4 x 8 x 2 x 2,048, 1.77 PFLOP")
    assert found["GPUs"] == ("4", "FSDP2, memory is that of each")
    assert found["Host memory"] == ("12.00 GiB", "weights of all")


def test_the_headline_of_one_without_steps():
    spot = dataclasses.replace(FITS.spot, run_seconds=None, run_usd=None)
    nothing = dict.fromkeys(("run_seconds", "run_usd", "run_kwh", "run_co2e_grams"))
    gpu = dataclasses.replace(FITS, spot=spot, **nothing)
    found = tiles(dataclasses.replace(PLAN, steps=None, gpus=[gpu]))
    assert found["Fits L4"] == ("yes", "21.50 GiB of 22.00 GiB, 97.7%")
    assert found["Time"] == ("2.00 s", "a step on L4")
    assert found["Cost"] == ("$0.014", "per million tokens on L4")
    assert found["On spot machines"] == ("$0.0072", "per million tokens on L4, saved every 40 steps")
    assert found["Energy"] == ("0.0042 kWh", "per million tokens on L4, 2 g CO₂e")


def test_the_headline_where_it_fits_nowhere():
    found = tiles(dataclasses.replace(PLAN, gpus=[TOO_SMALL, dataclasses.replace(TOO_SMALL, name="A10")]))
    assert found["Fits"] == ("nowhere", "2 accelerators asked")
    assert [found[name][0] for name in ("Fastest", "Cheapest", "Cheapest on spot", "Least energy")] == [None] * 4


def test_memory_over_the_steps_and_its_phases():
    """What is computed again counts as the backward that asks for it."""
    held = read(PLAN).data["figures"]["planned-memory"]
    areas = {trace["name"]: trace["y"] for trace in held["traces"] if trace["type"] == "scatter"}
    assert areas == {"weights": [15.0] * 5, "logits": [0.0, 1.0, 5.0, 0.0, 1.0]}
    strip = [(trace["name"], trace["x"]) for trace in held["traces"] if trace["type"] == "bar"]
    assert strip == [("forward", [10]), ("backward", [30]), ("optimizer", [15]), ("forward", [15])]
    assert held["layout"]["shapes"][0]["x0"] == 60


def test_the_data_where_they_were_read():
    kinds = [PlannedBatching("by length", {}, True, 1200, 0.04, 7), PlannedBatching("packs", {}, False, 1000, 0.0, 5)]
    known = dataclasses.replace(PLAN, data=PlannedData(100, 40_000, 900, 0.04, 20, 2, kinds))
    said = read(known).said
    assert "100 examples of 40,000 tokens, the longest 900; 4% of a step is padding. 20 rows are evaluated 2" in said
    assert "by length (the recipe) 1,200 4 % 7 packs 1,000 0 % 5" in said
    assert tiles(known)["Tokens in a step"] == ("32,768", "at most: 8 x 2 x 2,048, 1.77 PFLOP")


def test_a_peak_in_an_evaluation():
    held = dataclasses.replace(MEMORY.timeline, phases=["forward", "backward", "optimizer", "forward", "evaluation"])
    memory = dataclasses.replace(MEMORY, peak_phase="evaluation", timeline=held)
    plan = dataclasses.replace(PLAN, memory=memory)
    assert tiles(plan)["Peak allocated"] == ("20.00 GiB", "in the evaluation")
    said = read(plan).said
    assert "and a batch of an evaluation behind them" in said
    assert "Most is allocated in the evaluation: 20.00 GiB." in said


def points(plan):
    figure = read(plan).data["figures"]["time-money"]
    return figure["layout"], {
        trace["name"]: list(zip(trace["text"], trace["x"], trace["y"], strict=True)) for trace in figure["traces"]
    }


def test_time_against_money():
    dear = dataclasses.replace(FITS, name="A10", run_seconds=7200.0, run_usd=3.0, on_frontier=False, spot=None)
    layout, found = points(dataclasses.replace(PLAN, gpus=[FITS, dear, TOO_SMALL]))
    assert found == {
        "the best choices": [("L4", 1.5, 1.2)],
        "others, on demand": [("A10", 2.0, 3.0)],
        "on spot machines": [("L4", 1.59, 0.636)],
    }
    assert layout["xaxis"]["title"]["text"] == "hours of the run"
    assert "type" not in layout["xaxis"]


def test_time_against_money_of_a_million_tokens():
    """16,384 tokens/s: 61.035 s, 0.016954 h; on spot machines 6% more."""
    layout, found = points(dataclasses.replace(PLAN, steps=None))
    assert found["the best choices"] == [("L4", 0.0169542, 0.0136)]
    assert found["on spot machines"] == [("L4", 0.0179715, 0.0072)]
    assert layout["yaxis"]["title"]["text"] == "USD per million tokens"


def test_axes_whose_values_are_far_apart_are_logarithmic():
    slow = dataclasses.replace(FITS, name="A10", run_seconds=54000.0, run_usd=1.0, spot=None)
    layout, _ = points(dataclasses.replace(PLAN, gpus=[dataclasses.replace(FITS, run_seconds=3600.0), slow]))
    assert layout["xaxis"]["type"] == "log"
    assert layout["xaxis"]["ticktext"][:4] == ["1", "2", "5", "10"]
    assert "type" not in layout["yaxis"]


def test_no_point_without_a_price_or_where_it_does_not_fit():
    free = dataclasses.replace(FITS, usd_per_million_tokens=None, run_usd=None, spot=None)
    page = read(dataclasses.replace(PLAN, gpus=[free, TOO_SMALL]))
    assert "time-money" not in page.data["figures"]
    assert "Time against money: of no accelerator that fits are both the time and a price known." in page.said


def test_accelerators_advice_and_assumptions_are_told():
    said = read(ADVISED).said
    for told in (
        "L4 best 21.5 22.0 2.00 s 16,384 1.5 $1.20 $0.64 0.10 0.048 $0.80 somebody, 2026-11-20",
        "T4 does not fit 21.5 14.5 n/a n/a 1.5 $1.20 n/a 0.10 0.048 $0.80",
        "To fit L4 (22.0 GiB), each change simulated, the best first",
        "train.gradient_checkpointing=true + of each layer only the input is kept for the backward",
        "adapter.method=qlora train.max_length=1024 changes what is learned",
        "Left out: train.optim=sgd: why not.",
        "12 rows of 2,048 tokens: train.per_device_train_batch_size=12",
        "every row is long",
        "T4: no time",
        "Again: hf-efficient plan it",
        "Besides, 3.00 GiB of paged optimizer state",
        "logits 2.00 GiB 4,096 x 131,072 float32 lm_head",
    ):
        assert told in said, told


def test_a_column_of_spot_only_beside_prices_on_demand():
    columns = "tokens/s hours {} kWh kg CO₂e an hour price from"
    assert columns.format("on demand spot") in read(PLAN).said
    assert columns.format("on demand") in read(dataclasses.replace(PLAN, gpus=[TOO_SMALL])).said
    spot = dataclasses.replace(PLAN, gpus=[dataclasses.replace(FITS, market="spot")])
    assert columns.format("spot") in read(spot).said
    assert "on spot machines" not in points(spot)[1]


def test_what_was_not_asked_for_is_not_there():
    titles = [attributes.get("href") for tag, attributes in read(BARE).elements if tag == "a"]
    assert titles == ["#main", "#summary", "#planned_memory", "#planned_notes"]


def test_texts_from_outside_stay_texts():
    gpu = dataclasses.replace(FITS, name=IMAGE, price_source=SCRIPT, notes=[SCRIPT])
    plan = dataclasses.replace(ADVISED, recipe=SCRIPT, model=IMAGE, gpus=[gpu], assumptions=[IMAGE])
    text = plan_page(plan, SCRIPT)
    assert IMAGE not in text
    assert SCRIPT not in text
    assert {"img"} & {tag for tag, _ in Page(text).elements} == set()
