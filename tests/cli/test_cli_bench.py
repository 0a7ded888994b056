"""``hf-efficient bench``: flags, wrong flags, what it prints and writes; the comparison itself is a made one."""

import json
from pathlib import Path

import pytest

from hf_efficient.records.bench import ArmOutcome, ArmRun, Comparison, Ratio, Work
from hf_efficient.trials import bench as room


@pytest.fixture
def made(monkeypatch, recipe):
    """What was asked of ``compare``; it answers with an arm that is twice as fast, and one refused."""
    asked = []

    def compare(argument, overrides, arms, progress, **options):
        asked.append((argument, overrides, [one.name for one in arms], options))
        work = Work("r.json", "rows.jsonl", "messages", 3, 2, 1, 96, 67.0, "cpu", "CPU", "tiny")
        run = ArmRun([], [300], [400], [3.0, float("nan")], [0.0, 0.0], 2**30)
        outcomes = [
            ArmOutcome("trl", "SFTTrainer", reason="does not learn: no gradient", refused=True, runs=[run]),
            ArmOutcome(
                "recipe", "hf-efficient train", runs=[run], tokens_per_second=222.0, ratio=Ratio(2, 1.5, 3, 0.94)
            ),
        ]
        head = {"schema_version": 1, "hf_efficient_version": "0", "recipe": argument, "started_at": "now"}
        return Comparison(
            **head, load_average=None, environment={}, work=work, rounds=5, steps=8, warm_up=3, base="recipe",
            arms=outcomes if options["rounds"] == 5 else outcomes[::-1],
        )  # fmt: skip

    monkeypatch.setattr(room, "compare", compare)
    return asked


def test_the_table_goes_to_a_terminal_and_a_markdown_file(run, recipe, made, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run("bench", str(recipe), "a.b=1", "--markdown", "t.md", "--plot", "t.svg")
    assert code == 0
    ((argument, overrides, arms, options),) = made
    assert (argument, overrides, arms) == (str(recipe), ["a.b=1"], ["trl", "trl_packed", "bare", "recipe"])
    assert options == {"rounds": 5, "steps": 8, "pythons": {}, "random_weights": False}
    assert "2.00 [1.50, 3.00]" in out
    assert "trl is refused, its speed not shown: does not learn: no gradient" in out
    assert "| recipe: hf-efficient train | 222 | 2.00 [1.50, 3.00] |" in Path("t.md").read_text()
    assert Path("t.svg").read_text().startswith("<svg")


def test_json_is_strict(run, recipe, made):
    code, out, _ = run("bench", str(recipe), "--json", "--against", "trl")
    assert code == 0
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["arms"][0]["runs"][0]["losses"] == [3.0, None]
    assert found["arms"][1]["ratio"]["median"] == 2


def test_a_recipe_that_does_not_learn_exits_with_1(run, recipe, made):
    code, _, _ = run("bench", str(recipe), "--rounds", "1")
    assert code == 1


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--against trl,sfttrainer", "--against: 'sfttrainer' is no arm. "),
        ("--against recipe,trl", "--against: the recipe itself always runs. Name its peers alone."),
        ("--against ,", "--against: names no peer. Write trl, for instance."),
        (
            "--peer-python axolotl=/bin/sh",
            "--peer-python: axolotl does not run. Write --against trl,trl_packed,bare,axolotl",
        ),
        ("--peer-python axolotl", "--peer-python: axolotl names no Python."),
        ("--plot t.png", "--plot: t.png is no SVG file. Write t.svg."),
        ("--markdown no/such/t.md", "--markdown: there is no folder no/such."),
    ],
)
def test_wrong_flags_are_refused_before_anything_runs(run, recipe, made, flags, told):
    code, _, err = run("bench", str(recipe), *flags.split())
    assert code == 2
    assert told in err
    assert made == []
