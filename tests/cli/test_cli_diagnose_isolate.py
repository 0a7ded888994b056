"""``hf-efficient diagnose RECIPE --isolate``: its room replaced by a finished result."""

from __future__ import annotations

import json

import pytest
import yaml

from hf_efficient.isolate import result as room
from hf_efficient.isolate.result import isolation_of
from hf_efficient.isolate.variants import VARIANTS
from hf_efficient.recipe.load import load_recipe
from tests.isolate.variants_run import outcomes


@pytest.fixture
def isolated(recipe, monkeypatch):
    """The recipe; its variants take what ``tests/isolate/variants_run.py`` says, and the steps asked for are kept."""
    asked = []

    def isolate(argument, overrides, steps, progress):
        asked.append((argument, list(overrides), steps))
        progress.begins(VARIANTS[0], 1, 12, 1)
        progress.ends(VARIANTS[0], 2.0, "")
        progress.begins(VARIANTS[1], 1, 3, 2)
        progress.ends(VARIANTS[1], 1.0, "out of device memory")
        return isolation_of(load_recipe(argument, overrides), outcomes(), steps, 3)

    monkeypatch.setattr(room, "isolate", isolate)
    return asked


def test_the_attribution_is_printed_and_progress_goes_to_standard_error(run, recipe, isolated):
    code, out, err = run("diagnose", str(recipe), "--isolate", "train.learning_rate=1e-5")
    assert code == 0
    assert isolated == [(str(recipe), ["train.learning_rate=1e-5"], 12)]
    assert "An optimizer step of tiny: 1.13 s" in out
    assert "backward and optimizer" in out
    assert "[1/12] as_is: as it is, without evaluations and saves ... 2.0 s\n" in err
    assert "[1/3, round 2] quiet" in err
    assert "1.0 s, failed: out of device memory\n" in err


def test_json_is_strict_and_whole(run, recipe, isolated):
    code, out, _ = run("diagnose", str(recipe), "--isolate", "--steps", "8", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["schema_version"], found["steps"]) == (1, 8)
    assert {part["name"] for part in found["parts"]} >= {"forward", "data", "instrumentation"}
    assert found["diagnosis"]["rules"]


def test_the_remedy_is_a_recipe_that_extends_the_one_that_was_measured(run, recipe, isolated, tmp_path):
    new = tmp_path / "next.yaml"
    code, _, err = run("diagnose", str(recipe), "train.warmup_steps=7", "--isolate", "--apply", str(new))
    assert code == 0
    written = yaml.safe_load(new.read_text())
    found = load_recipe(new)
    assert written["extends"] == recipe.name
    assert found.train["warmup_steps"] == 7
    # the dearest: a micro-batch's fixed 0.1 s, four to a step
    assert found.train["per_device_train_batch_size"] == 32
    assert found.output_dir.endswith("-small-micro-batch")
    assert "predicted" in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("RECIPE",), "is a recipe, which has recorded nothing: add --isolate"),
        (("FOLDER", "--isolate"), "is a folder, and variants are made of a recipe"),
        (("RECIPE", "--isolate", "--steps", "5"), "--steps: 5 are too few"),
        (("RECIPE", "--isolate", "--finding", "1"), "--finding says what --apply takes"),
        (("FOLDER", "--steps", "8"), "--steps goes with --isolate"),
        (("FOLDER", "a.b=1"), "a.b=1 goes with --isolate"),
        (("no/such.yaml", "--isolate"), "no/such.yaml"),
        (("RECIPE", "--isolate", "train.learning_rat=1"), "learning_rate"),
        (("RECIPE", "--isolate", "--apply", "next.txt"), "ends in .yaml"),
    ],
)
def test_bad_input_is_a_sentence(run, recipe, tmp_path, args, said):
    names = {"RECIPE": str(recipe), "FOLDER": str(tmp_path)}
    code, out, err = run("diagnose", *(names.get(arg, arg) for arg in args))
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert out == ""
