"""data, init, convert: what they print, what they write, and what they refuse."""

import functools
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.train_fields import train_fields


@pytest.fixture(autouse=True)
def _fields(_own_cache):
    """The fields of ``train:`` are remembered already, so that no line says they are read."""
    train_fields("sft")


@pytest.fixture
def folder(tmp_path, monkeypatch, chats_jsonl):
    """The current directory, with ``chats.jsonl``; nobody to ask."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    return tmp_path


def test_data_marks_the_targets_where_there_is_no_colour(run, tiny_recipe_file):
    ended = run("data", str(tiny_recipe_file), "--examples", "1", "train.completion_only_loss=true")
    assert (ended.code, ended.err) == (0, "")
    assert "are in ⟦ ⟧." in ended.out
    assert ended.out.count("⟦") == 2
    assert "⟦0 + 0 = 0.<|im_end|>\n⟧" in ended.out or "⟦1 + 1 = 2. Sure.<|im_end|>\n⟧" in ended.out
    lines = {line.partition("  ")[0]: " ".join(line.split()) for line in ended.out.splitlines()}
    assert lines["examples"].startswith("examples 19, ")
    assert lines["examples"].endswith("evaluation 5")
    assert lines["packing"] == "packing off"


def test_data_as_json_alone(run, tiny_recipe_file):
    ended = run("data", str(tiny_recipe_file), "--json", "train.packing=true", "train.max_length=96")
    found = json.loads(ended.out)
    assert (found["examples"], len(found["shown"]), found["max_length"]) == (19, 3, 96)
    assert found["packing"]["rows"] * found["packing"]["examples_per_row"] == pytest.approx(19)
    assert found["target_share"] == pytest.approx(found["target_tokens"] / found["tokens"])


def test_data_in_colour(run, tiny_recipe_file, monkeypatch):
    console = functools.partial(Console, force_terminal=True, color_system="standard", no_color=False)
    monkeypatch.setattr("hf_efficient.reporting.terminal.Console", console)
    ended = run("data", str(tiny_recipe_file), "--examples", "1")
    assert "\x1b[1;32m" in ended.out
    assert "⟦" not in ended.out


def test_control_characters_of_the_data_do_not_reach_the_terminal(run, tiny_recipe_file, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"text": "a\x1b[2Jb" + "x" * 700}) + "\n", encoding="utf-8")
    values = [f"data.train=[{{path: {bad}}}]", "data.eval_fraction=null", "evaluate.metrics=[]"]
    ended = run("data", str(tiny_recipe_file), *values, "train.max_length=1000")
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "\\x1b[2Jb" in ended.out
    assert re.search(r"x … 1\d\d characters … x", " ".join(ended.out.split()))


def test_data_of_a_missing_file(run, tiny_recipe_file):
    ended = run("data", str(tiny_recipe_file), "data.train.0.path=nothere.jsonl")
    assert (ended.code, ended.out) == (2, "")
    assert "data.train.0.path: no such file: nothere.jsonl" in ended.err


FLAGS = ("--model", "meta-llama/Llama-3.1-8B-Instruct", "--data", "chats.jsonl", "--gpu", "a10")


def test_init_writes_a_recipe_and_the_next_commands(run, folder):
    ended = run("init", "my.yaml", *FLAGS)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == (
        "written: my.yaml (bases/qlora)\nNext:\n  hf-efficient validate my.yaml\n"
        "  hf-efficient data my.yaml\n  hf-efficient plan my.yaml --gpu A10\n  hf-efficient train my.yaml\n"
        "meta-llama/Llama-3.1-8B-Instruct is not in the local hub cache: data and train download it.\n"
    )
    loaded = load_recipe("my.yaml")
    assert (loaded.output_dir, loaded.data.eval_fraction) == ("outputs/my", 0.2)
    assert run("validate", "my.yaml").out.startswith("ok: my (sft, qlora)\ndata.train.0: chats.jsonl: read all ")


def test_init_overwrites_only_with_force(run, folder):
    Path("my.yaml").write_text("mine", encoding="utf-8")
    ended = run("init", "my.yaml", *FLAGS)
    assert (ended.code, Path("my.yaml").read_text(encoding="utf-8")) == (2, "mine")
    assert ended.err.endswith("Write the name of a new file, or add --force to overwrite it.\n")
    assert run("init", "my.yaml", *FLAGS, "--force", "--method", "lora").code == 0
    assert load_recipe("my.yaml").adapter.method == "lora"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (FLAGS[:2], "--data, --gpu: missing, and there is no terminal to ask on. Write, for instance, --model meta"),
        ((*FLAGS[:5], "A11"), "--gpu: 'A11' is no accelerator with known figures. Did you mean A10, A10G? Or write cp"),
        ((*FLAGS[:3], "gone.jsonl", *FLAGS[4:]), "--data: no such file: gone.jsonl."),
        (("--model", "./gone", *FLAGS[2:]), "--model: ./gone does not exist."),
        (("--model", "quickstart", *FLAGS[2:]), "--model: quickstart is no local folder, and a name on the hub has"),
        ((*FLAGS, "--columns", "prompt"), "--columns: 'prompt' has no name on one side. Write prompt=question,"),
    ],
)
def test_init_names_the_flag(run, folder, flags, told):
    ended = run("init", "my.yaml", *flags)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {told}")
    assert not Path("my.yaml").exists()


def test_init_asks_on_a_terminal_until_the_answer_is_right(run, folder, monkeypatch):
    answers = iter(["gone.jsonl", "chats.jsonl", "cpu"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda _: next(answers))
    ended = run("init", "my.yaml", *FLAGS[:2])
    assert ended.code == 0
    assert ended.err.startswith("--data: no such file: gone.jsonl.")
    assert load_recipe("my.yaml").train["bf16"] is None  # the run measures whether this CPU is fast in it


def test_convert_prints_the_recipe_and_lists_the_rest(run, folder):
    Path("trl.yaml").write_text("model_name_or_path: m\ndataset_name: d/e\nenv: {A: b}\n", encoding="utf-8")
    ended = run("convert", "trl.yaml")
    assert ended.code == 0
    assert ended.err == "not mapped: env: a recipe sets no environment variables. Export them in the shell.\n"
    assert run("convert", "trl.yaml", "--output", "r.yaml").out == "written: r.yaml\nNext: hf-efficient data r.yaml\n"
    assert Path("r.yaml").read_text(encoding="utf-8") == ended.out.replace("name: trl\n", "name: r\n")
    assert load_recipe("r.yaml").model.id == "m"
    again = run("convert", "trl.yaml", "--output", "r.yaml")
    assert (again.code, again.out) == (2, "")
