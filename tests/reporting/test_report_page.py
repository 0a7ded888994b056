"""The page of a run, and of several: what it holds, what it does without, what it says of what is missing."""

import dataclasses

import pytest
from hostile import IMAGE, QUOTES, SCRIPT, hostile
from page_reader import Page, check_whole
from sample_findings import diagnosed, healthy
from sample_run import write_records

from hf_efficient.accounting.account import account_of, write_account
from hf_efficient.accounting.comparison import compare_runs
from hf_efficient.records.account import TrainingAccount
from hf_efficient.records.findings import Confirmation
from hf_efficient.reporting.diagnosis import confirmation_words
from hf_efficient.reporting.html.compare_page import compare_page
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_data import read_run


def words(run):
    return Page(run_page(run)).said


RUNS = ("full_run", "bare_run", "crashed_run", "resumed_run", "long_run")


@pytest.mark.parametrize("name", RUNS)
def test_every_page_is_whole(name, request):
    page = Page(run_page(request.getfixturevalue(name)))
    check_whole(page)
    assert [tag for tag, _ in page.elements].count("h1") == 1
    named = [attributes["aria-label"] for tag, attributes in page.elements if attributes.get("role") == "img"]
    assert len(named) == len(page.data["figures"])
    assert all(len(label) > 30 for label in named)


def test_the_headline(full_run):
    said = words(full_run)
    for told in (
        "Wall time 3 min 29 s 120 steps of 927 ms (median)",
        "Throughput 14,941 tokens/s 1.70 million without padding, and 13.3% padding; evaluations and saves apart",
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
        "In short", "Findings", "Plan", "Time", "Machine", "Memory", "Loss", "Speed", "Tokens", "Cost", "Evaluations",
        "Recipe", "Not measured",
    ]  # fmt: skip
    assert " ".join(titles) in words(full_run)
    said = words(resumed_run)
    assert "Recipe Segments Not measured" in said
    died = "no end was recorded; last heartbeat after 1 min 41 s, in evaluation"
    assert f"1 1 to 47 1 min 41 s 43.1 s 0.385 % {died}" in said
    assert "2 31 to 60" in said


def test_what_is_missing_is_said(bare_run):
    said = words(bare_run)
    for told in (
        "Throughput: the tokens of the steps are not known.",
        "Over time: no readings were taken during the run; the peaks are in the table.",
        "By kind: weights, gradients, optimizer state and the like were not measured apart in this run.",
        "Loss: no loss was logged; logging_steps says how often it is.",
        "Tokens per step: tokens were not counted.",
        "Sequence lengths: the lengths of the sequences were not counted.",
        "Money: the records state no price.",
        "Energy: no meter was read.",
        "Evaluations: none was recorded.",
        "there is no recipe.resolved.yaml beside the records: only a recipe's run writes one.",
    ):
        assert told in said
    assert set(Page(run_page(bare_run)).data["figures"]) == {"step-phases", "step-times"}


def test_how_it_ended(full_run, crashed_run, resumed_run):
    assert "llama3.1-8b-lora finished meta-llama/Llama-3.1-8B-Instruct lora sft NVIDIA H200" in words(full_run)
    assert "failed torch.OutOfMemoryError: CUDA out of memory." in words(crashed_run)
    told = resumed_run.account
    first = dataclasses.replace(told.time, processes=told.time.processes[:1])
    killed = dataclasses.replace(resumed_run, account=dataclasses.replace(told, ended="died", time=first))
    why = "It was killed, or is still running: no end was recorded; last heartbeat after 1 min 41 s"
    assert f"did not end {why}" in words(killed)


def test_estimates_are_marked(full_run):
    said = words(full_run)
    assert "money $0.23 at $3.99/h (estimated: list price of one H200, 2025-06)" in said
    assert "CPU 0.00486 kWh estimated 0.7 x 280 W (TDP)" in said
    assert "GPU 0 0.0194 kWh nvml" in said
    account = full_run.account
    work = dataclasses.replace(account.work, peak_estimated=True)
    guessed = dataclasses.replace(full_run, account=dataclasses.replace(account, work=work))
    assert "MFU estimated 41.2 %" in words(guessed)


def test_provenance(full_run):
    said = words(full_run)
    assert "train.learning_rate 0.0002 command line: train.learning_rate=2.0e-4" in said
    assert "adapter.r 16 …/llama/lora.yaml:6" in said
    assert "3 more values, left at their defaults" in said
    assert "model.revision null default" in said
    assert "NVIDIA H200, 140.40 GiB" in said
    assert "torch 2.13.0 transformers 5.23.0 bitsandbytes not installed" in said


def test_thousands_of_evaluations_are_not_listed(full_run):
    many = [dataclasses.replace(full_run.account.evaluations[1], step=step) for step in range(1, 1001)]
    run = dataclasses.replace(full_run, account=dataclasses.replace(full_run.account, evaluations=many))
    said = words(run)
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
    folder = write_records(tmp_path, steps=2)
    (folder / "recipe.resolved.yaml").write_text(f"recipe: [{SCRIPT}", encoding="utf-8")
    run = read_run(folder)
    assert (run.recipe, run.name) == (None, tmp_path.name)
    assert "recipe.resolved.yaml: cannot be read" in words(run)


def test_only_run_json_is_left(tmp_path):
    folder = write_records(tmp_path, steps=5)
    write_account(folder, account_of(folder))
    for path in folder.glob("*.jsonl"):
        path.unlink()
    page = Page(run_page(read_run(folder)))
    assert page.data["figures"] == {}
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
    series = dataclasses.replace(long_run.series, steps=dataclasses.replace(steps, **wide, phase_seconds=phases))
    text = run_page(dataclasses.replace(full_run, series=series))
    assert len(text.encode()) < 5_000_000


def compared(*runs):
    return Page(compare_page(compare_runs([[run] for run in runs]), runs, "hf-efficient compare a b"))


def test_runs_compared(full_run, crashed_run, bare_run):
    page = compared(full_run, crashed_run, bare_run)
    assert sorted(page.data["figures"]) == ["compare-loss", "compare-step-times"]
    said = page.said
    assert "3 runs compared A llama3.1-8b-lora" in said
    assert "wall time 3 min 29 s 1 min 00 s -71.3%" in said  # of fewer steps: neither better nor worse
    assert "B did not end by itself (error): its totals are of 17 steps." in said
    assert "A and B: steps in pairs, as both have the same batches; circular block bootstrap." in said
    assert "A and C: steps of each run alone" in said
    assert "C has no recipe beside its records: changes of its data and its code are not known" in said
    assert "No setting, version or hardware that the runs recorded differs" in said


def test_recipes_that_differ(tmp_path, full_run):
    other = read_run(write_records(tmp_path, steps=20, rate="1.0e-4", name="other", speed=2.0))
    said = compared(full_run, other).said
    assert "recipe train.learning_rate 0.0002 0.0001" in said
    assert "step time, median 927 ms 480 ms -46.8% (" in said
    assert "A and B: steps in pairs" in said


def test_a_finding_tells_its_cost_its_evidence_and_its_remedies(full_run):
    told = words(diagnosed(full_run))
    assert (
        "2 3.5% of the training loop is spent in checkpoints warning measured rule saves_cost costs 6.8 s (3.49 % of "
        "the loop), $0.0075 plots Evidence of finding 2 evidence value share of the loop in checkpoints steps.jsonl: "
        "phase_seconds.checkpointing 3.5 % mean checkpoint spans.jsonl: save 1.70 s"
    ) in told
    assert (
        "Save every 120 steps about 2.6 % of the loop's time, 5.1 s , $0.0056 estimated "
        "train.save_strategy=steps train.save_steps=120 Copy Predicted from: a checkpoint after every 65 steps, each "
        "as long as those that were measured But: a run that dies has up to 120 steps to do again "
        "Save the weights without optimizer state train.save_only_model=true Copy"
    ) in told


def test_what_was_not_judged_is_folded_with_the_instrument_that_would_tell(full_run):
    page = Page(run_page(diagnosed(full_run)))
    assert "4 rules could not judge, 2 did launch_bound no trace was taken; profile.trace would" in page.said
    assert "data_storage the data loader was not watched" in page.said
    assert "slow_host too few readings loss_rises too few losses; train.logging_steps would show it" in page.said
    assert page.said.count("A longer run would show what 2 rules could not judge.") == 1
    folded = [attributes for tag, attributes in page.elements if tag == "details"]
    assert folded
    assert not any("open" in attributes for attributes in folded)
    assert "A rule failed, a defect of hf_efficient: float32_products: KeyError: 'fp32'." in page.said


def test_a_healthy_run_has_nothing_to_fix_and_a_limit(full_run):
    told = words(healthy(full_run))
    assert (
        "Findings Nothing to fix. The limit that it is at: it is bound by arithmetic: 50.3 % of the dense peak in "
        "bfloat16. Evidence of the limit evidence value hardware FLOP/s over the peak run.json: work.hfu 50.3 %"
    ) in told
    assert "1 rule was asked and could judge." in told
    assert "--apply" not in told


def test_the_rules_are_asked_of_a_run_that_is_read(tmp_path):
    """A twelfth of the loop evaluates every thirtieth step for as long as a dozen steps take."""
    run = read_run(write_records(tmp_path, steps=60))
    assert run.diagnosis is not None
    assert [one.rule for one in run.diagnosis.findings][:1] == ["evaluations_cost"]


def came(told, of, predicted, achieved=None, spread=None, verdict="confirmed", why=""):
    return Confirmation(told.partition(":")[0], "out/slow", of, predicted, achieved, spread, verdict, why), told


@pytest.mark.parametrize(
    ("held", "told"),
    [
        came("data_transform: 44% less time per token predicted, 41% ±3% came", "time", 0.44, 0.41, 0.03),
        came(
            "saves_cost: 44% less time per token predicted, 2% ±5% more came: no difference beyond the spread",
            *("time", 0.44, -0.02, 0.05, "retracted", "no difference beyond the spread"),
        ),
        came(
            "saves_cost: 44% less time per token predicted: this run has other data",
            *("time", 0.44, None, None, "unknown", "this run has other data"),
        ),
        came("logits_spike: 2.00 GiB less at the peak predicted, 1.00 GiB came", "memory", 2 * 2**30, 2**30),
        came("scaler_skips: the finding is gone", "finding", None),
        came(
            "scaler_skips: the finding is still there",
            *("finding", None, None, None, "retracted", "the finding is still there"),
        ),
    ],
)
def test_a_confirmation_in_words(held, told):
    assert confirmation_words(held) == told


CALLS = [
    TrainingAccount(0, 20.0, 30.0, 8, 1, 8, 2.5, "done", None),
    TrainingAccount(1, 60.0, 4.0, 0, None, None, None, "error", "ValueError: no"),
]


def with_calls(run, *calls):
    processes = [
        dataclasses.replace(process, began_at_seconds=5.0, trainings=list(trainings))
        for process, trainings in zip(run.account.time.processes, calls, strict=True)
    ]
    time = dataclasses.replace(run.account.time, processes=processes)
    return dataclasses.replace(run, account=dataclasses.replace(run.account, time=time))


def test_each_call_has_a_row(full_run, resumed_run):
    page = words(with_calls(full_run, CALLS))
    assert "1 1 to 8 15.0 s 30.0 s 2.5 s finished 2 none 55.0 s 4.0 s failed: ValueError: no" in page
    assert "2 calls of train()" in page
    page = words(with_calls(resumed_run, CALLS, CALLS[:1]))
    assert "2.1 1 to 8 15.0 s 30.0 s 2.5 s finished" in page
    assert "call of train()" not in words(with_calls(resumed_run, CALLS[:1], CALLS[1:]))
