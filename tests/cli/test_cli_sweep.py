"""``hf-efficient sweep``: the table, the page, the exit codes, and what is wrong with its arguments."""

import json

import pytest

from hf_efficient.trials import tune as room
from tests.trials.machine import SweptMachine

pytestmark = pytest.mark.usefixtures("machine")
OVER = ("--over", "per_device_train_batch_size=1,2,4,8,16,32", "--minutes", "60")


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(
        "model: {id: m}\ndata: {train: x.jsonl}\ntrain: {max_steps: 400, max_length: 512, bf16: false}\n"
        f"output_dir: {tmp_path / 'out'}\n"
    )
    return path


@pytest.fixture
def machine(monkeypatch):
    one = SweptMachine()
    monkeypatch.setattr(room.Trials, "run", lambda self, values, wanted: one(values, wanted))
    return one


def test_the_points_are_printed_with_knee_and_answer_and_the_page_is_in_the_folder(run, recipe, tmp_path):
    code, out, err = run("sweep", str(recipe), *OVER, "--p95-step-seconds", "4")
    told = " ".join(out.split())
    assert code == 0
    # tokens/s of 1, 2, 4, 8, 16, 32 rows: 67, 100, 133, 160, 178, 188; the last two gain 1.11 and 1.06
    assert "knee: per_device_train_batch_size 16, 178 tokens/s" in told
    assert "most tokens/s with p95 under 4.00 s: per_device_train_batch_size 4, 133 tokens/s, p95 3.00 s" in told
    assert "The global batch is not kept, accumulation stays." in told
    assert "per_device_train_batch_size 1 ... 67 tokens/s, p95 1.50 s" in err
    folder = tmp_path / "out-sweep"
    page = (folder / "sweep.html").read_text()
    assert "Tokens/s against p95" in page
    assert "1.11" in page
    assert json.loads((folder / "sweep.json").read_text())["answer"] == 2
    assert not (tmp_path / "out").exists()


def test_without_a_point_under_the_limit_the_answer_is_no(run, recipe):
    code, out, _ = run("sweep", str(recipe), *OVER, "--p95-step-seconds", "1")
    assert code == 1
    assert "no point has p95 under 1.00 s; the shortest is 1.50 s" in " ".join(out.split())


def test_json_is_alone_on_standard_output(run, recipe):
    code, out, _ = run("sweep", str(recipe), "--over", "per_device_train_batch_size=1,2,max_length=64,128", "--json")
    found = json.loads(out)
    assert code == 0
    assert [list(one["values"].values()) for one in found["points"]] == [[1, 64], [1, 128], [2, 64], [2, 128]]
    assert found["points"][0]["tokens_per_second"] == pytest.approx(100 / 1.5)
    assert found["answer"] is None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ("--over lenght", "--over: lenght is no key of `train:`."),
        ("--over optim=1", "takes no whole number. Name another key, such as per_device_train_batch_size."),
        ("--minutes 0", "--minutes: 0 is not above zero"),
        ("--minutes 0.1", "--minutes: 0.1 are too few: one trial took 11.5 s"),
        ("--p95-step-seconds -1", "--p95-step-seconds: -1 is not above zero"),
        ("distributed.nodes=2", "distributed.nodes: is 2, and trials run on one machine."),
        ("objective=dpo", "objective: is dpo, and trials are of sft alone."),
    ],
)
def test_bad_input(run, recipe, args, told, tmp_path):
    code, _, err = run("sweep", str(recipe), *args.split())
    assert code == 2
    assert told in err
    assert not (tmp_path / "out-sweep" / "sweep.json").exists()
