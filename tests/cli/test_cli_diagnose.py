"""``hf-efficient diagnose`` on a run, with --apply, on a trace and on what is neither."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.diagnosis.made import case_in, settings, step

RESOLVED = """\
recipe: {name: chats, train: {max_steps: 100, save_steps: 2}, output_dir: out/run}
provenance: {name: 'r.yaml:1', train.max_steps: 'r.yaml:2', train.save_steps: 'r.yaml:3', output_dir: 'r.yaml:4'}
environment: {}
"""


@pytest.fixture
def saved_often(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    plain = {"forward": 0.4, "backward": 0.6}
    steps = [step(n, phases={**plain, "checkpointing": 1.0} if n % 2 == 0 else plain) for n in range(1, 101)]
    facts = {"settings": settings(arguments={"save_strategy": "steps", "save_steps": 2})}
    case_in(tmp_path / "out" / "efficiency", steps, facts=facts, recipe=RESOLVED, price_usd_per_hour=3.6)
    return tmp_path / "out"


def test_findings_are_printed_with_evidence_cost_and_change(run, saved_often):
    code, out, _ = run("diagnose", str(saved_often))
    assert code == 0
    assert "1. 33.3% of the training loop is spent in checkpoints" in out
    assert "[warning, measured: saves_cost]" in out
    assert "costs 50.0 s, $0.05" in out
    assert "steps.jsonl: phase_seconds.checkpointing" in out
    assert "train.save_steps=33" in out
    assert "predicted from: a checkpoint after every 33 steps" in out


def test_json_holds_the_same(run, saved_often):
    code, out, _ = run("diagnose", str(saved_often), "--json")
    assert code == 0
    assert json.loads(out)["findings"][0]["remedies"][0]["overrides"]["train.save_steps"] == 33


def test_the_remedy_is_written_as_a_recipe(run, saved_often, tmp_path):
    new = tmp_path / "next.yaml"
    code, _, told = run("diagnose", str(saved_often), "--apply", str(new))
    assert code == 0
    assert "train.save_steps=33" in told
    held = yaml.safe_load(new.read_text())
    assert held["train"] == {"max_steps": 100, "save_steps": 33, "save_strategy": "steps"}
    assert held["output_dir"] == "out/run-saves-cost"
    confirms = held["efficiency"]["confirms"]
    assert (confirms["rule"], confirms["run"]) == ("saves_cost", "out/run")
    assert confirms["seconds_per_token"] == pytest.approx(150 / 40_000)
    assert confirms["predicted_saving"] == pytest.approx((50 - 4) / 150, rel=1e-4)  # 33, 66, 99 and the end
    assert "its report says whether it came" in told


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--apply", "next.txt"], "--apply: next.txt is not named like a recipe"),
        (["--apply", "next.yaml", "--finding", "7"], "--finding: 7 is no finding of this run: there are 1"),
        (["--finding", "1"], "--finding says what --apply takes"),
    ],
)
def test_wrong_flags_are_told(run, saved_often, monkeypatch, tmp_path, args, told):
    monkeypatch.chdir(tmp_path)
    code, _, error = run("diagnose", str(saved_often), *args)
    assert code == 2
    assert told in error
    assert not (tmp_path / "next.yaml").exists()


def test_a_folder_that_is_not_there_is_told(run, tmp_path):
    code, _, error = run("diagnose", str(tmp_path / "nowhere"))
    assert code == 2
    assert "no such folder" in error


def test_a_trace_has_no_recipe_to_change(run, tmp_path):
    code, _, error = run("diagnose", str(tmp_path / "a.json.gz"), "--apply", str(tmp_path / "b.yaml"))
    assert code == 2
    assert "a trace has none" in error
