"""``hf-efficient compare``: the table, JSON, Markdown, the page, exit codes, and wrong input."""

import json
from pathlib import Path

import pytest

from tests.accounting.compared_runs import write_run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    write_run(Path("a"), evaluations=[(60, 2.0)])
    write_run(Path("b"), seed=2, seconds=0.0104, evaluations=[(60, 2.1)], recipe={"train": {"learning_rate": 0.2}})


def test_the_table_of_two_runs(run, runs):
    done = run("compare", "a", "b")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert lines[:2] == ["A r a", "B r b"]
    assert "recipe train.learning_rate 0.1 0.2" in lines
    speed = next(line for line in lines if line.startswith("throughput"))
    assert speed.startswith("throughput after warm-up 100 tokens/s 96 tokens/s -4.")
    assert speed.endswith("% worse")
    assert "-4." in speed.split(" to ")[0]
    assert "evaluation loss at equal tokens 2 2.1 +5.0% one value, no spread" in lines
    assert any(line.startswith("A and B: steps in pairs") for line in lines)
    assert any("show a difference of" in line for line in lines)


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--threshold tokens_per_second=3", 1),
        ("--threshold tokens_per_second=6% --threshold step_p95_seconds=6", 0),
        ("--threshold tokens_per_second=6 --threshold step_p50_seconds=2", 1),
        ("--eval-tolerance 4", 1),
        ("--eval-tolerance 6", 0),
    ],
)
def test_a_regression_is_the_answer_no(run, runs, flags, code):
    done = run("compare", "a", "b", *flags.split())
    assert done.code == code
    assert ("beyond its threshold of" in done.out) == bool(code)


def test_json_markdown_and_a_page(run, runs):
    done = run("compare", "a", "b", "--json", "--markdown", "pr.md", "--html", "page.html", "--threshold=peak_memory=1")
    assert (done.code, done.err) == (0, "The page is page.html\n")
    found = json.loads(done.out)
    assert found["schema_version"] == 1
    speed = next(one for one in found["figures"] if one["name"] == "non_padding_tokens_per_second")
    assert speed["changes"][1]["compared"]["method"] == "paired_steps"
    text = Path("pr.md").read_text()
    assert "| figure | A | B | change | interval |  |" in text
    assert "**worse**" in text
    assert "| recipe | train.learning_rate | 0.1 | 0.2 |" in text
    page = Path("page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "runs compared" in page
    done = run("compare", "a", "b", "--markdown", "-", "--threshold", "tokens_per_second=1")
    assert done.code == 1
    assert done.out.startswith("### hf-efficient")
    assert "- **B: throughput after warm-up -4." in done.out


def test_a_run_without_a_recipe_is_named(run, runs):
    Path("b/efficiency/recipe.resolved.yaml").unlink()
    out = run("compare", "a", "b").out
    assert "No setting, version or hardware that the runs recorded differs." in out
    assert "B has no recipe beside its records: changes of its data and its code are not known" in out
    assert "A has no recipe" not in out


def test_runs_of_scripts_differ_in_their_training_arguments(run, runs):
    for name, workers in (("a", 0), ("b", 2)):
        arguments = {"dataloader_num_workers": workers, "output_dir": name, "learning_rate": 0.1}
        write_run(Path(name), settings={"arguments": arguments, "model": {"attention": "sdpa"}})
        Path(name, "efficiency", "recipe.resolved.yaml").unlink()
    out = [" ".join(line.split()) for line in run("compare", "a", "b").out.splitlines()]
    assert "setting train.dataloader_num_workers 0 2" in out
    assert sum(line.startswith("setting") for line in out) == 1


def test_repeated_runs_are_written_with_commas(run, runs):
    done = run("compare", "a,a", "b,b,b")
    assert done.code == 0
    assert "A and B: 2 and 3 runs are too few; a difference shows from 4 each" in done.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("a", "RUN_DIR: one run is no comparison. Name 2 to 26 output directories."),
        ("a gone", "gone: no such folder; name the OUTPUT_DIR of a run"),
        ("a a,gone", "gone: no such folder; name the OUTPUT_DIR of a run"),
        ("a .", ".: holds no records of a run"),
        ("a b --threshold speed", "--threshold: speed is no figure with a percentage. Write tokens_per_second=3."),
        ("a b --threshold mfu=x", "--threshold: mfu=x is no figure with a percentage"),
        ("a b --threshold mfu=-1", "--threshold: mfu=-1 is no figure with a percentage"),
        ("a b --threshold speed=3", "--threshold speed: these runs have no such figure"),
        ("a b --eval-tolerance -1", "--eval-tolerance: -1.0 is below 0. Write a percentage, such as 1."),
        ("a b --html gone/x.html", "--html: there is no folder gone"),
        ("a b --markdown gone/x.md", "--markdown: there is no folder gone."),
        ("a b --json --markdown -", "--markdown: - and --json both print. Write --markdown FILE."),
    ],
)
def test_wrong_input(run, runs, arguments, told):
    done = run("compare", *arguments.split())
    assert done.code == 2
    assert told in done.err


def test_a_newer_account_is_refused(run, runs):
    for name in ("steps.jsonl", "spans.jsonl"):
        Path("b/efficiency", name).unlink()
    Path("b/efficiency/run.json").write_text('{"schema_version": 99}')
    done = run("compare", "a", "b")
    assert done.code == 2
    assert "schema_version 99 is newer than" in done.err
