"""A recipe's budget: checked before anything is loaded, kept, told, and no failure."""

import json

import pytest

from hf_efficient import train
from hf_efficient.accounting.account import account_of, read_account
from hf_efficient.callbacks.stop import BudgetCallback
from hf_efficient.errors import OutputError
from hf_efficient.launch import records as budgets
from hf_efficient.launch.listener import RunListener
from hf_efficient.launch.records import recipe_budget
from hf_efficient.launch.run import run_recipe
from hf_efficient.recording.budget import BudgetWatch, Look
from tests.conftest import logged_values
from tests.launch.notes import Notes


@pytest.fixture
def load(tiny_recipe):
    own = ("train.max_steps=8", "train.save_steps=4", "evaluate.metrics=[]", "budget.hours=1")
    return lambda *overrides: tiny_recipe(*own, *overrides)


@pytest.fixture
def spent_at_step_3(monkeypatch):
    def look(self, live, step, **due):
        return Look("hours" if step == 3 else None, None, step + 1)

    monkeypatch.setattr(BudgetWatch, "look", look)


def test_a_run_that_its_budget_ends_and_that_goes_on(load, tmp_path, spent_at_step_3):
    notes, output = Notes(), tmp_path / "out"
    result = run_recipe(load("adapter.merge=true"), notes)
    assert result.steps == 3
    assert result.ended_early is not None
    assert result.ended_early.startswith("hours: ")
    assert result.ended_early.endswith(" of 1 h 00 min spent after step 3 of 8")
    assert (result.after, result.merged_dir) == ({}, None)  # neither an evaluation at the end nor a merged model
    assert notes.result is result
    (told,) = (detail for title, detail in notes.stages if title == "Budget")
    assert told.startswith("budget.hours=1 (1 h 00 min): ")
    assert "the same command with `--resume budget.hours=1.1` continues." in told
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-3"]
    assert (output / "adapter_model.safetensors").is_file()
    assert not (output / "merged").exists()
    account = read_account(output / "efficiency/run.json")
    assert (account.ended, account.money.budget.reached) == ("done", result.ended_early)
    assert "evaluation" not in account.time.phase_seconds

    again = run_recipe(load("adapter.merge=true", "existing_output=resume", "budget.hours=1.1"), notes)
    assert (again.steps, again.ended_early) == (8, None)
    assert again.after
    assert (output / "merged").is_dir()
    whole = tmp_path / "whole"
    run_recipe(load(f"output_dir={whole}", "budget=null"))
    assert logged_values(output) == logged_values(whole)
    assert read_account(output / "efficiency/run.json").money.budget.reached is None


@pytest.mark.slow
def test_with_early_stopping_it_goes_on_as_well(load, tmp_path, spent_at_step_3):
    overrides = ["evaluate.early_stopping.patience=5", "train.eval_strategy=steps", "train.eval_steps=4"]
    overrides += ["train.load_best_model_at_end=true", "train.metric_for_best_model=loss"]
    assert run_recipe(load(*overrides)).steps == 3
    assert run_recipe(load(*overrides, "existing_output=resume")).steps == 8


def test_its_exit_code_is_0_and_the_terminal_says_it(tiny_recipe_file, capsys, spent_at_step_3):
    assert train.main([str(tiny_recipe_file), "budget.hours=1"]) == 0
    told = capsys.readouterr()
    assert "The budget ended the run: hours: " in told.out
    assert "continues." in told.out + told.err


def test_the_forecast_knows_of_the_evaluation_after_the_training(load, tmp_path):
    run_recipe(load())
    lines = [json.loads(line) for line in (tmp_path / "out/efficiency/spans.jsonl").read_text().splitlines()]
    facts: dict[str, object] = {}
    for line in lines:
        facts.update(line.get("facts", {}).get("run", {}) if line["kind"] == "facts" else {})
    (began,) = (line["at_seconds"] for line in lines if line["kind"] == "train")
    first = account_of(tmp_path / "out/efficiency").time.processes[0]
    startup = facts.pop("startup_seconds")
    assert began - first.began_at_seconds < startup < first.time_to_first_step_seconds
    evaluations = {"evaluate_every": None, "evaluate_from": 0, "evaluate_after": True, "evaluate_at_end": True}
    assert facts == {"world_size": 1, "max_steps": 8, "save_every": 4, "save_best": False, **evaluations}
    assert [line["step"] for line in lines if line["kind"] == "save"] == [4, 8]
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == [8]
    assert [one.step for one in read_account(tmp_path / "out/efficiency/run.json").evaluations] == [8]


SPENT = {
    "hours: 0.0000001": r"budget\.hours=1e-07 \(.*\): the run has spent .* nothing is left",
    "usd: 0.0000001": r"budget\.usd=1e-07: the run has spent \$.* nothing is left",
    "kwh: 0.000000001": r"budget\.kwh=1e-09: the run has spent .* kWh .* nothing is left",
}


def test_a_run_that_has_spent_its_budget_does_not_load_a_model(load, monkeypatch):
    priced = ["train.max_steps=4", "cost.price_usd_per_hour=1", "budget=null"]
    run_recipe(load(*priced))
    monkeypatch.setattr("hf_efficient.launch.run.build", lambda *args, **more: pytest.fail("it was built"))
    for limit, said in SPENT.items():
        with pytest.raises(OutputError, match=said):
            run_recipe(load(*priced[:2], "existing_output=resume", f"budget={{{limit}}}"))


@pytest.mark.slow
def test_starts_that_were_lost_before_the_first_checkpoint_count(load, tmp_path, monkeypatch):
    """The first start dies after two steps, before its checkpoint of step 4; the second starts anew, and adds to it."""
    output = tmp_path / "out/efficiency"
    own = ["cost.price_usd_per_hour=3600", "budget.hours=1"]

    def dies(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise RuntimeError("planted")

    with monkeypatch.context() as patched:
        patched.setattr(BudgetCallback, "on_step_begin", dies)
        with pytest.raises(RuntimeError, match="planted"):
            run_recipe(load(*own))
    (lost,) = read_account(output / "run.json").time.processes
    assert (lost.steps, lost.ended) == (2, "error")
    little = load(*own, "existing_output=resume", "budget={usd: 0.01}")
    with monkeypatch.context() as patched:
        patched.setattr("hf_efficient.launch.run.build", lambda *args, **more: pytest.fail("it was built"))
        with pytest.raises(OutputError, match=r"has spent .* and nothing is left"):
            run_recipe(little)
    seen = []
    monkeypatch.setattr(BudgetCallback, "on_step_begin", lambda self, *args, **kw: seen.append(self._live().spent()))
    again = run_recipe(load(*own, "existing_output=resume"))
    assert again.steps == 8
    found = read_account(output / "run.json")
    assert found.time.processes[0] == lost
    assert [one.steps for one in found.time.processes] == [2, 8]
    assert found.steps.count == 10
    walls = [one.wall_seconds for one in found.time.processes]
    assert found.money.cost_usd == pytest.approx(sum(walls))  # a dollar a second
    assert seen[0].wall_seconds > lost.wall_seconds
    assert seen[0].usd == pytest.approx(seen[0].wall_seconds)


def test_without_a_budget_there_is_no_callback(load):
    assert recipe_budget(load("budget=null"), RunListener()) is None
    mine = recipe_budget(load("budget={usd: 2, hours: null, kwh: 1}"), RunListener())
    assert isinstance(mine, BudgetCallback)
    assert mine.limits.given() == {"usd": 2.0, "kwh": 1.0}
    assert budgets._words(mine.limits).no_price("no price") == "budget.usd=2: no price."
