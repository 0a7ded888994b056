"""Benchmark tasks on a run's model: the harness's own numbers, before and after, and what cannot be scored."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_efficient.errors import ModelError, SetupError
from hf_efficient.launch.evaluate import Evaluation, evaluate_model
from hf_efficient.records.trained_model import TaskScores
from hf_efficient.reporting.trained_model import scores_lines
from hf_efficient.run_dir.json_file import read_record
from hf_efficient.run_dir.paths import RESOLVED
from tests.conftest import small_recipe

pytest.importorskip("lm_eval")

CHOICE = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: DATA}
test_split: train
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {"question": f"{first} + {second} =", "choices": [f" {first + second}", f" {first * second + 1}"], "answer": 0}
        for first in range(4)
        for second in range(4)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "sums.yaml").write_text(CHOICE.replace("DATA", str(folder / "rows.jsonl")))
    return folder / "sums.yaml"


@pytest.fixture(scope="module")
def run(tiny_llama_dir, tmp_path_factory):
    """An adapter that changes much, as a run leaves it."""
    folder = tmp_path_factory.mktemp("run")
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_llama_dir), LoraConfig(r=4, target_modules="all-linear")
    )
    torch.manual_seed(1)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_llama_dir).save_pretrained(folder)
    (folder / "efficiency").mkdir()
    return folder


def scores(target, *tasks, with_base=True, **how):
    return evaluate_model(str(target), Evaluation(tuple(map(str, tasks)), **how), with_base=with_base)


def test_a_run_beside_its_base(run, task, tiny_llama_dir):
    found = scores(run, task)
    (one,) = found.scores
    assert (one.task, one.metric, one.filter, one.samples, one.few_shot) == ("sums", "acc", "none", 16, 0)
    (base,) = scores(tiny_llama_dir, task).scores
    assert (one.before, one.before_error) == (base.after, base.after_error)
    assert one.paired.low < one.paired.high  # the adapter changes answers
    assert one.paired.difference == pytest.approx(one.after - one.before)
    assert read_record(run / "efficiency/evaluation.json", TaskScores, 1, "scores") == found
    assert sorted(path.name for path in (run / "efficiency").iterdir()) == ["evaluation.json"]
    verdict, how = scores_lines(found)
    assert verdict.startswith("sums acc (0 shots, filter none, 16 examples): ")
    assert how.startswith("lm-eval ")


@pytest.fixture(scope="module")
def full_run(tiny_llama_dir, tmp_path_factory):
    """A whole model with other weights, and the recipe that names the one that it was trained from."""
    folder = tmp_path_factory.mktemp("full")
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    torch.manual_seed(1)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_llama_dir).save_pretrained(folder)
    (folder / "efficiency").mkdir()
    held = small_recipe(model={"id": str(tiny_llama_dir)}, adapter={"method": "full"}).resolved()
    (folder / "efficiency" / RESOLVED).write_text(yaml.safe_dump({"recipe": held}))
    return folder


def test_a_full_fine_tune_beside_the_model_of_its_recipe(full_run, run, task):
    (one,) = scores(full_run, task).scores
    (adapted,) = scores(run, task).scores
    assert (one.before, one.before_error) == (adapted.before, adapted.before_error)
    assert one.paired.difference == pytest.approx(one.after - one.before)
    assert one.paired.low < one.paired.high
    (alone,) = evaluate_model(str(full_run), Evaluation((str(task),)), with_base=False).scores
    assert (alone.after, alone.before) == (one.after, None)


def test_a_base_that_is_not_here(full_run, task, tmp_path):
    moved = shutil.copytree(full_run, tmp_path / "run")
    held = small_recipe(model={"id": str(tmp_path / "gone")}, adapter={"method": "full"}).resolved()
    (moved / "efficiency" / RESOLVED).write_text(yaml.safe_dump({"recipe": held}))
    with pytest.raises(ModelError, match=r"gone.* `--no-base` scores the trained model alone"):
        scores(moved, task)


@pytest.mark.slow
def test_the_numbers_are_those_of_lm_evals_own_command(run, task, tiny_llama_dir, tmp_path):
    command = [str(Path(sys.executable).with_name("lm_eval")), "run", "--model", "hf", "--tasks", "sums"]
    command += ["--model_args", f"pretrained={tiny_llama_dir},peft={run}", "--include_path", str(task.parent)]
    command += ["--batch_size", "8", "--device", "cpu", "--output_path", str(tmp_path / "scores.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (written,) = tmp_path.rglob("*.json")
    theirs = json.loads(written.read_text())["results"]["sums"]
    (one,) = scores(run, task).scores
    assert (one.after, one.after_error) == (theirs["acc,none"], theirs["acc_stderr,none"])


def test_a_limit_and_a_model_alone(tiny_llama_dir, task):
    found = scores(tiny_llama_dir, task, limit=4)
    (one,) = found.scores
    assert (one.samples, one.before, one.paired, found.base) == (4, None, None, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothere.yaml", r"--tasks .*nothere.yaml does not exist"),
        ("no_such_task", r"--tasks no_such_task is not a task of lm-eval"),
        ("empty.yaml", r"has no line `task: NAME`"),
        ("dataless.yaml", r"--tasks dataless cannot be loaded: .*nothere.jsonl"),
        ("splitless.yaml", r"--tasks splitless: the task file does not work \(KeyError: .*elsewhere"),
    ],
)
def test_a_task_that_cannot_be_run_is_named_before_the_model_loads(name, message, task, tmp_path):
    (tmp_path / "empty.yaml").write_text("dataset_path: json\n")
    dataless = CHOICE.replace("DATA", str(tmp_path / "nothere.jsonl")).replace("task: sums", "task: dataless")
    (tmp_path / "dataless.yaml").write_text(dataless)
    splitless = CHOICE.replace("DATA", str(task.with_name("rows.jsonl"))).replace("task: sums", "task: splitless")
    (tmp_path / "splitless.yaml").write_text(splitless.replace("test_split: train", "test_split: elsewhere"))
    with pytest.raises(SetupError, match=message):
        scores(tmp_path / "no-model", tmp_path / name if name.endswith(".yaml") else name)


@pytest.mark.parametrize(
    ("written", "wrong", "told"),
    [
        ("{{question}}", "{{quest}}", "UndefinedError: 'quest' is undefined"),
        ("{{question}}", "{{question", "TemplateSyntaxError: "),
    ],
)
def test_a_task_file_that_does_not_work_is_told(run, task, tmp_path, written, wrong, told):
    path = tmp_path / "wrong.yaml"
    path.write_text(task.read_text().replace(written, wrong).replace("task: sums", "task: wrong"))
    with pytest.raises(SetupError, match=rf"--tasks wrong: the task file does not work \({told}"):
        scores(run, path, with_base=False)


def test_a_folder_without_a_model(tmp_path, task):
    with pytest.raises(ModelError, match="holds no adapter"):
        scores(tmp_path, task)
