"""``hf-efficient tune``: the table, the files, and what is wrong with its arguments."""

import json

import pytest

from hf_efficient.trials import tune as room
from tests.trials.machine import Machine

pytestmark = pytest.mark.usefixtures("machine")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text(
        "model: {id: m}\ndata: {train: x.jsonl, eval_fraction: 0.1}\ntrain: {bf16: false, eval_steps: 5, "
        f"eval_strategy: steps, max_steps: 400, max_length: 512}}\noutput_dir: {tmp_path / 'out'}\n"
    )
    return path


@pytest.fixture
def machine(monkeypatch):
    one = Machine()
    monkeypatch.setattr(room.Trials, "run", lambda self, changes, wanted: one(changes, wanted))
    return one


def test_the_ladder_is_printed_and_the_tuned_recipe_and_its_page_are_in_the_folder(run, recipe, tmp_path):
    code, out, err = run("tune", str(recipe), "--minutes", "60")
    folder = tmp_path / "out-tuning"
    assert code == 0
    assert "+ packing" in out
    assert "promised elsewhere: up to 2 times" in " ".join(out.split())
    assert f"hf-efficient train {folder / 'tuned.yaml'}" in out
    assert "the recipe as it is ..." in err
    page = (folder / "tuning.html").read_text()
    assert "What was tried" in page
    assert "extends:" in page


def test_json_is_alone_on_standard_output(run, recipe):
    code, out, _ = run("tune", str(recipe), "--minutes", "60", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["changes"]["train.packing"] is True
    assert {one["verdict"] for one in found["tried"]} >= {"accepted", "no_gain"}


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("--objective speed", "--objective: speed is unknown. Write tokens_per_second"),
        ("--max-memory 0", "--max-memory: 0 is not above zero"),
        ("--minutes 0", "--minutes: 0 is not above zero"),
        ("--minutes 0.1", "--minutes: 0.1 are too few: one trial of this recipe took"),
        ("--objective usd_per_million_tokens", "needs a price, and none is known. Write cost.price_usd_per_hour=0.5"),
        ("--without fun", "--without: fun is no knob."),
        ("distributed.nodes=2", "distributed.nodes: is 2, and trials run on one machine."),
        ("objective=dpo", "objective: is dpo, and trials are of sft alone."),
        ("--on kubernetes", "--on: is kubernetes, and trials run as jobs of Slurm alone."),
        ("--cluster c.yaml", "--cluster: describes machines that no trial runs on. Write --on slurm with it."),
        ("--on slurm --cluster c.yaml", "c.yaml: there is no such file."),
    ],
)
def test_bad_input(run, recipe, args, told, tmp_path):
    code, _, err = run("tune", str(recipe), *args.split())
    assert code == 2
    assert told in err
    assert not (tmp_path / "out-tuning" / "tuned.yaml").exists()


def test_a_run_directory_is_no_recipe(run, tmp_path):
    code, _, err = run("tune", str(tmp_path))
    assert code == 2
    assert "is a folder, and tune runs a recipe" in err
