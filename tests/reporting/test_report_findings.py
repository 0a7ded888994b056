"""The findings of a run on its page."""

from __future__ import annotations

import dataclasses

from page_reader import Page
from sample_findings import diagnosed, finding, healthy
from sample_run import write_records

from hf_efficient.reporting.diagnosis import told_argument, told_change
from hf_efficient.reporting.html.run_findings import findings_section
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_data import read_run


def said(run):
    return Page(run_page(run)).said


def test_a_finding_tells_its_cost_its_evidence_and_its_remedies(full_run):
    told = said(diagnosed(full_run))
    assert (
        "2 3.5% of the training loop is spent in checkpoints warning measured rule saves_cost "
        "costs 6.8 s (3.49 % of the loop), $0.0075 Evidence of finding 2 evidence value "
        "share of the loop in checkpoints steps.jsonl: phase_seconds.checkpointing 3.5 % "
        "mean checkpoint spans.jsonl: save 1.70 s"
    ) in told
    assert (
        "Save every 120 steps about 2.6 % of the loop's time, 5.1 s , $0.0056 estimated "
        "train.save_strategy=steps train.save_steps=120 Copy Predicted from: a checkpoint after every 65 steps, each "
        "as long as those that were measured But: a run that dies has up to 120 steps to do again "
        "Save the weights without optimizer state train.save_only_model=true Copy"
    ) in told


def test_findings_stand_in_their_order_and_behind_the_summary(full_run):
    page = Page(run_page(diagnosed(full_run)))
    ids = page.ids("h3")
    assert [name for name in ids if name.startswith("finding-")] == [f"finding-{number}" for number in range(1, 10)]
    assert page.ids("h2")[:2] == ["summary", "findings"]
    assert page.said.index("critical measured rule learning_rate_idle") < page.said.index("rule saves_cost")


def test_what_was_not_judged_is_folded_with_the_instrument_that_would_tell(full_run):
    page = Page(run_page(diagnosed(full_run)))
    assert (
        "2 rules could not judge, 2 did launch_bound no trace was taken; efficiency.profile.trace would tell"
        in page.said
    )
    assert "data_storage the data loader was not watched" in page.said
    folded = [attributes for tag, attributes in page.elements if tag == "details"]
    assert folded
    assert not any("open" in attributes for attributes in folded)
    assert "A rule failed, a defect of hf_efficient: float32_products: KeyError: 'fp32'." in page.said


def test_a_healthy_run_has_nothing_to_fix_and_a_limit(full_run):
    told = said(healthy(full_run))
    assert (
        "Findings Nothing to fix. The limit that it is at: it is bound by arithmetic: 50.3 % of the dense peak in "
        "bfloat16. Evidence of the limit evidence value hardware FLOP/s over the peak run.json: work.hfu 50.3 %"
    ) in told
    assert "1 rule was asked and could judge." in told
    assert "--apply" not in told


def test_a_run_without_a_recipe_is_told_its_arguments(full_run):
    told = said(dataclasses.replace(diagnosed(full_run), recipe=None))
    assert "save_strategy='steps', save_steps=120, Copy" in told
    assert "lines to copy are fields of its TrainingArguments" in told
    assert "--apply" not in told


def test_the_command_that_writes_the_recipe_names_the_first_finding_that_has_a_change(full_run):
    found = diagnosed(dataclasses.replace(full_run, directory="out/my run"))
    assert "hf-efficient diagnose 'out/my run' --apply next.yaml --finding 2" in said(found)


def test_the_rules_are_asked_of_a_run_that_is_read(tmp_path):
    """A twelfth of the loop evaluates every thirtieth step for as long as a dozen steps take."""
    run = read_run(write_records(tmp_path, steps=60))
    assert run.diagnosis is not None
    assert [one.rule for one in run.diagnosis.findings][:1] == ["evaluations_cost"]
    assert findings_section(run).figures[0].id == "finding-1-evidence"
    assert run.rank_step_seconds[0]["host_to_device"] == 0.003


def test_a_run_without_records_is_not_diagnosed(tmp_path):
    from hf_efficient.accounting.account import account_of, write_account

    folder = write_records(tmp_path, steps=5)
    write_account(folder, account_of(folder))
    for name in ("steps.jsonl", "spans.jsonl", "system.jsonl"):
        (folder / name).unlink()
    run = read_run(folder)
    assert run.diagnosis is None
    assert "findings" not in Page(run_page(run)).ids("h2")


def test_a_run_without_steps_is_not_judged(tmp_path):
    folder = write_records(tmp_path, steps=3)
    (folder / "steps.jsonl").write_text("", encoding="utf-8")
    assert "no optimizer step is recorded that could be judged" in said(read_run(folder))


def test_changes_as_a_recipe_and_as_a_script_take_them():
    assert told_change("train.bf16", True) == "train.bf16=true"
    assert told_change("adapter", None) == "adapter=null"
    assert told_argument("train.bf16", True) == "bf16=True,"
    assert told_argument("train.optim", "adamw_torch_fused") == "optim='adamw_torch_fused',"
    assert told_argument("efficiency.profile.nvtx", True) == "efficiency.profile.nvtx=true"


def test_a_finding_without_a_figure_still_stands(full_run):
    bare = finding("of_a_newer_version", cost=dataclasses.replace(finding().cost, seconds=None), remedies=[])
    held = diagnosed(full_run).diagnosis
    run = dataclasses.replace(full_run, diagnosis=dataclasses.replace(held, findings=[bare]))
    assert findings_section(run).figures == []
    assert "rule of_a_newer_version costs $0.0075 Evidence of finding 1 evidence value" in said(run)
