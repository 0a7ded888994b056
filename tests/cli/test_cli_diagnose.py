"""``hf-efficient diagnose`` of a run, ``isolate`` of a recipe by its variants, ``trace`` of a trace."""

import json

import pytest
import yaml

from hf_efficient.recipe.load import load_recipe
from hf_efficient.trials import isolate as room
from hf_efficient.trials.isolate import isolation_of
from tests.diagnosis.made import case_in, settings, step
from tests.trials.variants_run import outcomes

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


def test_the_diagnosis_as_json_alone(run, saved_often):
    code, out, err = run("diagnose", str(saved_often), "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert [one["rule"] for one in found["findings"]][:1] == ["saves_cost"]
    assert found["findings"][0]["remedies"][0]["overrides"]["train.save_steps"] == 33


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
    assert "its report confirms or retracts it" in told
    records = saved_often / "efficiency" / "steps.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:9]))  # six of them after warm-up
    _, _, told = run("diagnose", str(saved_often), "--apply", str(tmp_path / "short.yaml"))
    assert told.endswith(". Its report cannot confirm the time: that needs the records of 11 steps of each run\n")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--apply", "next.txt"], "--apply: next.txt is not named like a recipe"),
        (["--apply", "next.yaml", "--finding", "7"], "--finding: 7 is no finding of this run: there are 1"),
    ],
)
def test_wrong_flags_are_named(run, saved_often, monkeypatch, tmp_path, args, told):
    monkeypatch.chdir(tmp_path)
    code, _, error = run("diagnose", str(saved_often), *args)
    assert code == 2
    assert told in error
    assert not (tmp_path / "next.yaml").exists()


@pytest.fixture
def isolated(recipe, monkeypatch):
    """The recipe; its variants take what ``tests/trials/variants_run.py`` says, and the steps asked for are kept."""
    asked = []

    def isolate(argument, overrides, steps, progress):
        asked.append((argument, list(overrides), steps))
        progress.begins("[1/12] as_is")
        progress.ends("2.0 s")
        return isolation_of(load_recipe(argument, overrides), outcomes(), steps, 3)

    monkeypatch.setattr(room, "isolate", isolate)
    return asked


def test_the_attribution_is_printed_and_progress_goes_to_standard_error(run, recipe, isolated):
    code, out, err = run("isolate", str(recipe), "train.learning_rate=1e-5")
    assert code == 0
    assert isolated == [(str(recipe), ["train.learning_rate=1e-5"], 12)]
    assert "An optimizer step of tiny: 1.13 s" in out
    assert "backward and optimizer" in out
    assert "[1/12] as_is ... 2.0 s\n" in err


def test_json_is_strict_and_whole(run, recipe, isolated):
    code, out, _ = run("isolate", str(recipe), "--steps", "8", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["schema_version"], found["steps"]) == (1, 8)
    assert {part["name"] for part in found["parts"]} >= {"forward", "data", "instrumentation"}
    assert found["diagnosis"]["rules"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("diagnose RECIPE", "r.yaml: is a recipe, and diagnose reads a run. Name its output directory, or run short"),
        ("diagnose quickstart/lora", "variants of the recipe: hf-efficient isolate quickstart/lora"),
        ("diagnose FOLDER --steps 8", "--steps: is a flag of hf-efficient isolate."),
        ("diagnose FOLDER --finding 1", "--finding: chooses what --apply writes. Add --apply OUT.yaml."),
        ("diagnose a.json.gz --apply b.yaml", "a.json.gz: is no run. For a trace: hf-efficient trace a.json.gz"),
        ("isolate FOLDER", "is a folder, and isolate runs a recipe. Name a recipe file or a shipped recipe."),
        ("isolate RECIPE --steps 5", "--steps: 5 are too few"),
        ("isolate no/such.yaml", "no/such.yaml"),
        ("isolate RECIPE train.learning_rat=1", "learning_rate"),
        ("trace none.json", "none.json cannot be read"),
        ("trace FOLDER", "is a folder. A run writes one with profile.trace={}"),
    ],
)
def test_bad_input_is_a_sentence(run, recipe, tmp_path, args, said):
    names = {"RECIPE": str(recipe), "FOLDER": str(tmp_path)}
    code, out, err = run(*(names.get(arg, arg) for arg in args.split()))
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""


def test_a_trace_is_printed_and_given_as_json(run, tmp_path):
    trace = tmp_path / "trace.json"
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5}
    trace.write_text(json.dumps({"traceEvents": [kernel]}), encoding="utf-8")
    assert "computing" in run("trace", str(trace)).out
    told = json.loads(run("trace", str(trace), "--json").out)
    assert told["devices"][0]["busy"]["busy_seconds"] == 5e-6
