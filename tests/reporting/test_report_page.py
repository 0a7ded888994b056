"""The page as text: what it holds, what it does without, what it says of what is missing."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import datetime, timezone

import pytest
from hostile import IMAGE, QUOTES, SCRIPT, hostile
from page_reader import Page

from hf_efficient.reporting.html.compare_page import compare_page
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_data import read_run

RUNS = ("full_run", "bare_run", "crashed_run", "resumed_run", "long_run")


@pytest.mark.parametrize("name", RUNS)
def test_every_page_is_whole(name, request):
    page = Page(run_page(request.getfixturevalue(name)))
    assert len(page.ids()) == len(set(page.ids()))
    assert sorted(page.data["figures"]) == sorted(page.ids("figure"))
    links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
    assert all(link.removeprefix("#") in page.ids() for link in links)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    named = [attributes["aria-label"] for tag, attributes in page.elements if attributes.get("role") == "img"]
    assert len(named) == len(page.data["figures"])
    assert all(len(label) > 30 for label in named)
    tables = [tag for tag, _ in page.elements if tag in ("table", "caption")]
    assert tables.count("table") == tables.count("caption") > 2


@pytest.mark.parametrize("name", RUNS)
def test_no_page_names_an_address(name, request):
    page = Page(run_page(request.getfixturevalue(name)))
    for tag, attributes in page.elements:
        for attribute in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(attribute) or ""
            assert value == "" or value.startswith(("#", "data:")), (tag, value)
        assert "url(" not in (attributes.get("style") or "")


def test_the_headline(full_run):
    said = Page(run_page(full_run)).said
    wall = "Wall time 3 min 29 s 120 steps of 927 ms (median)"
    for told in (
        wall,
        "Throughput 14,941 tokens/s 1.70 million without padding, and 13.3% padding",
        "MFU 41.2 % HFU 50.3%, of 989 TFLOP/s peak",
        "Peak memory 41.00 GiB allocated on the device, 46.00 GiB reserved",
        "Cost estimated $0.23 $0.14 per million tokens without padding",
        "Energy estimated 0.0243 kWh 9.23 g CO₂e",
        "Evaluation loss 2.61 → 1.32 before → after training",
        "Unattributed 0.42 % 880 ms that no phase claimed",
    ):
        assert told in said


def test_the_sections_in_their_order(full_run, resumed_run):
    titles = [
        "In short",
        "Findings",
        "Plan",
        "Time",
        "Machine",
        "Memory",
        "Loss",
        "Speed",
        "Tokens",
        "Cost",
        "Evaluations",
        "Recipe",
        "Not measured",
    ]
    assert " ".join(titles) in Page(run_page(full_run)).said
    said = Page(run_page(resumed_run)).said
    assert "Recipe Segments Not measured" in said
    assert "1 1 to 47 1 min 41 s 43.1 s 0.385 % no end was recorded; last sign after 1 min 41 s, in evaluation" in said
    assert "2 31 to 60" in said


def test_what_is_missing_is_said(bare_run):
    said = Page(run_page(bare_run)).said
    for told in (
        "Throughput: the tokens of the steps are not known.",
        "Over time: no readings were taken while the run went on; the peaks are in the table.",
        "By kind: weights, gradients, optimizer state and the like were not told apart in this run.",
        "Loss: no loss was logged; train.logging_steps says how often it is.",
        "Tokens per step: tokens were not counted.",
        "Sequence lengths: the lengths of the sequences were not counted.",
        "Money: the records state no price.",
        "Energy: no meter was read.",
        "Evaluations: none was recorded.",
        "there is no recipe.resolved.yaml beside the records: only a recipe's run writes one.",
    ):
        assert told in said
    assert set(Page(run_page(bare_run)).data["figures"]) == {"time-bar", "step-phases", "step-times"}


def test_how_it_ended(full_run, crashed_run, resumed_run):
    assert (
        "llama3.1-8b-lora finished meta-llama/Llama-3.1-8B-Instruct lora sft NVIDIA H200"
        in Page(run_page(full_run)).said
    )
    assert "failed torch.OutOfMemoryError: CUDA out of memory." in Page(run_page(crashed_run)).said
    first = resumed_run.account.time.processes[0]
    killed = dataclasses.replace(
        resumed_run,
        account=dataclasses.replace(
            resumed_run.account, ended="died", time=dataclasses.replace(resumed_run.account.time, processes=[first])
        ),
    )
    assert (
        "did not end It was killed, or is still running: no end was recorded; last sign after 1 min 41 s"
        in Page(run_page(killed)).said
    )


def test_a_budget_that_ended_the_run(full_run):
    money = full_run.account.money
    budget = dataclasses.replace(money.budget, reached="0.25 usd of 0.25 are spent", reached_at_step=120)
    account = dataclasses.replace(full_run.account, money=dataclasses.replace(money, budget=budget))
    said = Page(run_page(dataclasses.replace(full_run, account=account))).said
    assert "stopped Its budget ended it: 0.25 usd of 0.25 are spent" in said
    assert "The budget was $40.00, 2 h. It ended the run after step 120: 0.25 usd of 0.25 are spent." in said
    assert "The budget was $40.00, 2 h. It was not reached." in Page(run_page(full_run)).said


def test_prices_that_differ(full_run):
    priced = dataclasses.replace(
        full_run.account.money,
        price_usd_per_hour=3.1,
        price_source="set by the user",
        lowest_price_usd_per_hour=2.49,
        highest_price_usd_per_hour=3.1,
    )
    account = dataclasses.replace(full_run.account, money=priced)
    said = Page(run_page(dataclasses.replace(full_run, account=account))).said
    assert "price $2.49 to $3.10/h (each start at its own; the last at $3.10/h, set by the user)" in said
    assert "price $3.99/h (list price of one H200, 2025-06)" in Page(run_page(full_run)).said


def test_estimates_are_marked(full_run):
    said = Page(run_page(full_run)).said
    assert "cost of the wall time $0.23 estimated" in said
    assert "CPU 0.00486 kWh estimated 0.7 x 280 W (TDP)" in said
    assert "GPU 0 0.0194 kWh nvml" in said
    account = full_run.account
    work = dataclasses.replace(account.work, peak_estimated=True)
    guessed = dataclasses.replace(full_run, account=dataclasses.replace(account, work=work))
    assert "MFU estimated 41.2 %" in Page(run_page(guessed)).said


def test_provenance(full_run):
    said = Page(run_page(full_run)).said
    assert "train.learning_rate 0.0002 command line: train.learning_rate=2.0e-4" in said
    assert "adapter.r 16 …/llama/lora.yaml:6" in said
    assert "3 more values, left at their defaults" in said
    assert "model.revision null default" in said
    assert "NVIDIA H200, 140.40 GiB" in said
    assert "torch 2.13.0 transformers 5.23.0 bitsandbytes not installed" in said


def test_thousands_of_evaluations_are_not_listed(full_run):
    many = [dataclasses.replace(full_run.account.evaluations[1], step=step) for step in range(1, 1001)]
    run = dataclasses.replace(full_run, account=dataclasses.replace(full_run.account, evaluations=many))
    said = Page(run_page(run)).said
    assert "960 evaluations between these are left out here; run.json has them." in said
    assert "step 20 " in said
    assert "step 981 " in said
    assert "step 500 " not in said


def test_hostile_texts_stay_texts(full_run):
    text = run_page(hostile(full_run))
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 4  # the data, ours, and the library
    assert "img" not in [tag for tag, _ in page.elements]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    for told in (SCRIPT, IMAGE, QUOTES.strip()):
        assert told in page.said
    assert "{{ 7 * 7 }}" in page.said
    assert text.count("</script>") == 4


def test_a_recipe_that_cannot_be_read_is_said(tmp_path):
    from sample_run import write_records

    folder = write_records(tmp_path, steps=2)
    (folder / "recipe.resolved.yaml").write_text(
        "recipe: [</script><script>window.taken = 1</script>", encoding="utf-8"
    )
    run = read_run(folder)
    assert run.recipe is None
    assert run.name == tmp_path.name
    assert "recipe.resolved.yaml: cannot be read" in Page(run_page(run)).said


def test_a_loss_that_is_none_is_skipped_and_told(tmp_path):
    from sample_run import write_records

    folder = write_records(tmp_path, steps=2)
    with (folder / "steps.jsonl").open("a", encoding="utf-8") as file:
        line = (folder / "steps.jsonl").read_text(encoding="utf-8").splitlines()[0]
        file.write(json.dumps({**json.loads(line), "loss": SCRIPT}) + "\n")
    page = run_page(read_run(folder))
    assert SCRIPT not in page
    assert "1 unreadable line in steps.jsonl was skipped" in Page(page).said


def test_only_run_json_is_left(tmp_path):
    from sample_run import write_records

    from hf_efficient.accounting.account import account_of, write_account

    folder = write_records(tmp_path, steps=5)
    write_account(folder, account_of(folder))
    for name in ("steps.jsonl", "spans.jsonl", "system.jsonl"):
        (folder / name).unlink()
    page = Page(run_page(read_run(folder)))
    assert list(page.data["figures"]) == ["time-bar"]
    assert "Per step: only run.json was kept of this run, not its records." in page.said
    assert "span" not in page.data


def test_a_million_steps_fit(full_run, long_run):
    """As many buckets as a million steps are thinned to, in every column."""
    steps = long_run.series.steps
    assert len(steps) > 1000
    wide = {
        each.name: (getattr(steps, each.name) * 3)[:2000]
        for each in dataclasses.fields(steps)
        if not isinstance(getattr(steps, each.name), dict)
    }
    phases = {f"phase{number}": [0.123456789] * 2000 for number in range(20)}
    loading = {f"part{number}": [0.1234567] * 2000 for number in range(10)}
    series = dataclasses.replace(
        long_run.series,
        steps=dataclasses.replace(steps, **wide, phase_seconds=phases, device_seconds={}, loader_seconds=loading),
    )
    text = run_page(dataclasses.replace(full_run, series=series))
    assert len(text.encode()) < 5_000_000


def test_the_footer(full_run):
    said = Page(run_page(full_run, datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc))).said
    assert re.search(
        r"Made by hf_efficient \S+, 2026-01-02 03:04 UTC\. Again, from the records: hf-efficient report", said
    )
    assert "Plots by plotly.js-basic 4.1.1 (MIT). This file makes no request to anywhere." in said


def test_runs_side_by_side(full_run, crashed_run, bare_run):
    page = Page(compare_page([full_run, crashed_run, bare_run]))
    assert sorted(page.data["figures"]) == ["compare-loss", "compare-phases", "compare-step-times"]
    said = page.said
    assert "3 runs side by side A llama3.1-8b-lora" in said
    assert "wall time 3 min 29 s 1 min 00 s -71.3%" in said  # of fewer steps: neither better nor worse
    assert "throughput, without padding 14,941 tokens/s 13,958 tokens/s -6.6% (worse) n/a" in said
    assert "C: no resolved recipe lies beside its records." in said
    assert "The recipes are alike in every key." in said


def test_recipes_that_differ(tmp_path, full_run):
    from sample_run import write_records

    other = read_run(write_records(tmp_path, steps=8, rate="1.0e-4", name="other"))
    said = Page(compare_page([full_run, other])).said
    assert "key that differs A B name llama3.1-8b-lora other train.learning_rate 0.0002 0.0001" in said


def test_hostile_runs_side_by_side(full_run):
    page = Page(compare_page([hostile(full_run), hostile(full_run)]))
    assert [tag for tag, _ in page.elements].count("script") == 4
    assert "img" not in [tag for tag, _ in page.elements]
