"""The short commands: recipes, validate, schema, env, check-node."""

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from hf_efficient.cli.recipes import explanation_table
from hf_efficient.recipe.files import ShippedPlan
from hf_efficient.recipe.json_schema import json_schema
from hf_efficient.recipe.load import ResolvedValue, load_recipe
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.recipe.tree import parse_yaml
from hf_efficient.records.device import Calibration, MatmulRate
from hf_efficient.version import __version__


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    root = tmp_path / "shipped"
    (root / "llama").mkdir(parents=True)
    (root / "llama" / "lora.yaml").write_text("description: LoRA\n", encoding="utf-8")
    (root / "quick.yaml").write_text("name: q\n", encoding="utf-8")
    monkeypatch.setattr("hf_efficient.recipe.files.shipped_root", lambda: root)
    return root


LORA = ShippedPlan("llama/lora", "meta/Llama-8B", "LoRA, ddp", 2048, 1, 2, "T4", 10, 12.5, 780.0, "llama3.1", True, "")


@pytest.fixture
def planned(shipped):
    (shipped / "plans.json").write_text(json.dumps([dataclasses.asdict(LORA)]), encoding="utf-8")


def test_the_list(run, planned):
    code, out, err = run("recipes")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["recipe", "GiB", "GPU", "tokens/s", "licence"]
    assert rows[1] == ["llama/lora", "~12.5", "2", "x", "T4", "~780", "llama3.1", "*"]
    assert rows[2] == ["quick", *["n/a"] * 4]
    assert "~ estimated by `hf-efficient plan" in out
    assert "* gated: accept the licence" in out


def test_the_list_without_plans(run, shipped):
    assert [line.split()[0] for line in run("recipes").out.splitlines()[:3]] == ["recipe", "llama/lora", "quick"]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ("", ["llama/lora", "quick"]),
        ("--model llama-8b", ["llama/lora"]),
        ("--model meta/", ["llama/lora"]),
        ("--model meta", []),
        ("--model quick", ["quick"]),
        ("--method lora", ["llama/lora"]),
        ("--method qlora", []),
        ("--gpu-memory 16", ["llama/lora"]),
        ("--gpu-memory 13", []),  # 91% of them are usable
    ],
)
def test_filters_of_the_list(run, planned, flags, names):
    code, out, err = run("recipes", "--json", *flags.split())
    assert [one["name"] for one in json.loads(out)] == names
    assert (code, err) == (0 if names else 1, "")
    if not names:
        assert run("recipes", *flags.split()) == (1, "", "No shipped recipe matches. Leave out a filter.\n")


def test_the_list_as_json(run, planned):
    lora, quick = json.loads(run("recipes", "--json").out)
    assert (lora["needed_gib"], lora["estimated"], lora["gpus"], lora["licence"]) == (12.5, True, 2, "llama3.1")
    assert set(quick) == {"name", "description", "path"}


def test_show_prints_the_resolved_recipe_which_loads_to_the_same(run, recipe):
    ended = run("recipes", "show", "r.yaml", "adapter.r=8")
    assert (ended.code, ended.err) == (0, "")
    resolved = load_recipe(recipe, ["adapter.r=8"]).resolved()
    assert parse_yaml(ended.out, Origin("shown")).plain() == resolved
    assert ended.out.startswith("name: tiny\ndescription: ''\nobjective: sft\nmodel:\n  id: some/model\n")
    recipe.write_text(ended.out, encoding="utf-8")
    assert load_recipe(recipe).resolved() == resolved


def test_explain_says_what_set_every_value(run, recipe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    ended = run("recipes", "show", "r.yaml", "train.seed=3", "--explain")
    lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert lines["key"] == ["value", "set", "by"]
    assert lines["name"] == ["tiny", "r.yaml:1"]
    assert lines["data.train.0.path"] == ["chats.jsonl", "r.yaml:4"]
    assert lines["train.learning_rate"] == ["0.0002", "r.yaml:6"]
    assert lines["train.seed"] == ["3", "command", "line:", "train.seed=3"]
    assert lines["adapter.r"] == ["16", "default"]
    shown, set_ones = list(lines)[1:], list(load_recipe(recipe, ["train.seed=3"]).provenance)
    assert [key for key in shown if key in set_ones] == set_ones
    assert len({line.index("default") for line in ended.out.splitlines() if line.rstrip().endswith(" default")}) == 1


def test_explain_shows_the_defaults_of_the_configuration_class_after_what_is_set(run, recipe):
    rows = json.loads(run("recipes", "show", "r.yaml", "objective=dpo", "--explain", "--json").out)
    told = f"default of trl {version('trl')}"
    keys = [row["key"] for row in rows]
    defaults = [row["key"] for row in rows if row["set_by"] == told]
    first = keys.index("train.learning_rate") + 1
    assert keys[first : first + len(defaults)] == defaults == sorted(defaults)
    assert keys[first + len(defaults)] == "distributed.processes"
    assert {"key": "train.beta", "value": 0.1, "set_by": told} in rows
    assert {"key": "train.loss_type.0", "value": "sigmoid", "set_by": told} in rows
    missing = set(train_fields("dpo")) - {key.split(".")[1] for key in defaults}
    others = {"model_init_kwargs", "trust_remote_code", "hub_token", "parallelism_config"}
    assert missing == {"learning_rate", "output_dir", *others}
    assert "train.beta" not in run("recipes", "show", "r.yaml", "objective=dpo").out


def test_what_does_not_fit_is_folded_and_not_cut():
    rows = [ResolvedValue("a.b", "x" * 70, "some/file.yaml:12"), ResolvedValue("c", "[red]", "default")]
    console = Console(width=80)
    with console.capture() as printed:
        console.print(explanation_table(rows))
    assert "".join(printed.get().split()).count("x") == 70
    assert printed.get().splitlines()[-1].split() == ["c", "'[red]'", "default"]


def test_ok_as_json(run, recipe):
    Path("chats.jsonl").write_text('{"text": "a"}\n')
    ended = run("validate", "r.yaml", "--json")
    assert (ended.code, ended.err) == (0, "")
    known = {"name": "tiny", "objective": "sft", "adapter": "lora", "path": "r.yaml", "remarks": []}
    read = {"data.train.0": {"path": "chats.jsonl", "format": "text", "rows": 1, "whole": True}}
    assert json.loads(ended.out) == {"ok": True, **known, "rows": read}


def test_the_first_rows_are_read(run, recipe):
    Path("chats.jsonl").write_text('{"text": "a"}\n' * 1001)
    ended = run("validate", "r.yaml", "data.eval=owner/name")
    assert ended.out.splitlines() == [
        "ok: tiny (sft, lora)",
        "data.train.0: chats.jsonl: read the first 1,000 rows, format text",
        "data.eval.0: owner/name is not on this machine: its rows were not read",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"text": "a"}\n{"text": "b"\n', "chats.jsonl:2: not valid JSON"),
        ('{"question": "a"}\n', "data.train.0 (chats.jsonl:1): the layout of the rows is not recognised."),
        ('{"text": "a"}\n{"body": "b"}\n', "chats.jsonl:2: 'text' is missing (columns found: body)"),
        ("", "data.train.0.path: chats.jsonl is empty: it has no rows."),
    ],
)
def test_a_wrong_row_is_refused(run, recipe, text, said):
    Path("chats.jsonl").write_text(text)
    ended = run("validate", "r.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: r.yaml:4: {said}")
    (problem,) = json.loads(run("validate", "r.yaml", "--json").out)["problems"]
    assert problem["message"].startswith(said)


def test_all_wrong_rows_are_named_up_to_five(run, recipe):
    Path("chats.jsonl").write_text('{"text": "a"}\n' + '{"body": "b"}\n' * 7)
    said = run("validate", "r.yaml").err.splitlines()
    assert [line.split(":")[4] for line in said[:5]] == ["2", "3", "4", "5", "6"]
    assert said[5:] == ["error: r.yaml:4: data.train.0: and 2 more rows like these."]


def test_a_missing_data_file_is_refused_with_the_nearest(run, recipe):
    Path("chats.jsonl").touch()
    said = "data.train.0.path: no such file: chat.jsonl. Nearest in .: chats.jsonl.\n"
    ended = run("validate", "r.yaml", "data=chat.jsonl")
    assert ended == (2, "", f"error: command line: data=chat.jsonl: {said}")
    gone = run("validate", "r.yaml", "data.eval=../no/a.csv")
    assert gone.err.endswith("data.eval.0.path: no such file: ../no/a.csv. The folder ../no does not exist either.\n")
    assert run("validate", "r.yaml", "data=tatsu-lab/alpaca").code == 0


def test_what_has_no_effect_is_remarked_on(run, recipe):
    Path("chats.jsonl").write_text('{"text": "a"}\n')
    remark = (
        "command line: train.eval_steps=4: train.eval_steps: has no effect, because train.eval_strategy is no. "
        "Write train.eval_strategy: steps, or remove it."
    )
    read = "data.train.0: chats.jsonl: read the only row, format text"
    out = f"ok: tiny (sft, lora)\n{read}\nwarning: {remark}\n"
    assert run("validate", "r.yaml", "train.eval_steps=4") == (0, out, "")
    assert json.loads(run("validate", "r.yaml", "train.eval_steps=4", "--json").out)["remarks"] == [remark]


def test_problems_as_json(run, recipe):
    ended = run("validate", "r.yaml", "train.seed=1.0", "--json")
    assert (ended.code, ended.err) == (2, "")
    problem = {"where": "command line: train.seed=1.0", "key": "train.seed", "remedy": "Write 1."}
    problem["message"] = "is the number 1.0, but must be a whole number."
    assert json.loads(ended.out) == {"ok": False, "problems": [problem]}


def test_it_is_written(run, tmp_path):
    path = tmp_path / "recipe.schema.json"
    assert run("schema", "--output", str(path)) == (0, f"written: {path}\n", "")
    assert json.loads(path.read_text(encoding="utf-8")) == json_schema()


def test_what_cannot_be_read_or_written(run):
    for command, told in (
        ("validate quickstrt/qlora", "quickstrt/qlora: is neither a file nor the name of a shipped recipe. Did you"),
        ("schema --output gone/s.json", "--output: there is no folder gone. N"),
    ):
        ended = run(*command.split())
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith(f"error: {told}")


FACTS = {
    "python": "3.11.7", "platform": "Linux-6.1-x86_64", "cpu": None, "physical_cores": None, "logical_cores": 4,
    "usable_cores": 2, "memory_bytes": 16 * 2**30, "driver": "550.1", "cuda": "12.4", "git_commit": "abc",
    "gpus": [{"name": "NVIDIA A100", "memory_bytes": 80 * 2**30, "capability": "8.0"},
             {"name": "Other", "memory_bytes": 2**30, "capability": None}],
    "versions": {"hf_efficient": "0.1.0", "torch": "2.13.0+cu124", "evaluate": None}, "git_dirty": True,
}  # fmt: skip


@pytest.fixture
def facts(monkeypatch):
    monkeypatch.setattr("hf_efficient.facts.environment.describe_environment", lambda: FACTS)


def test_as_text(run, facts):
    assert run("env").out == (
        "hf_efficient   0.1.0\ntorch          2.13.0+cu124\nevaluate       not installed\n"
        "GPU            NVIDIA A100, 80.00 GiB, capability 8.0\nGPU            Other, 1.00 GiB\n"
        "cores          4 logical, 2 usable\nmemory         16.00 GiB\nsystem         Linux-6.1-x86_64\n"
        "Python         3.11.7\nCUDA           12.4\nNVIDIA driver  550.1\ngit commit     abc with changes\n"
    )


def test_as_json(run, facts):
    assert json.loads(run("env", "--json").out) == FACTS


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Two devices, measured in no time; their files lie in the folder that is returned."""
    from hf_efficient.profilers import calibration

    def calibrated(name):
        rate = MatmulRate("bf16", 4096, 1e14)
        return Calibration(name, "cuda", "2.13.0", "2026-01-02", (rate,), 1e12, 5e-6, name == "Busy")

    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "devices", lambda: iter(("Idle", "Busy")))
    monkeypatch.setattr(calibration, "device_name", str)
    monkeypatch.setattr(calibration, "calibrate", calibrated)
    return tmp_path / "calibrations"


def test_calibrate_as_text(run, measured):
    told = run("env", "--calibrate")
    figures = [
        "  matmul bf16  100 TFLOP/s, at 4096 x 4096",
        "  memory       1,000.0 GB/s, read and written by a copy",
        "  launch       5.00 us of the host for each kernel",
    ]
    busy = "  Other processes used it at the same time: these figures are uncertain. Measure again when it is idle."
    assert told.code == 0
    assert told.out.splitlines() == [
        *("Idle, torch 2.13.0, 2026-01-02", *figures, f"  kept in {measured / 'idle.json'}"),
        *("Busy, torch 2.13.0, 2026-01-02", *figures, busy, f"  kept in {measured / 'busy.json'}"),
    ]
    assert told.err == "Measuring Idle ...\nMeasuring Busy ...\n"


@pytest.fixture
def check(run, tmp_path):
    def checked(*arguments, job="7", attempt="0"):
        return run("check-node", str(tmp_path / "out"), "--job", job, "--attempt", attempt, *arguments)

    return checked


def test_a_first_start_says_nothing_and_a_later_one_to_resume(check, tmp_path):
    first = check("--written-by", __version__)
    assert (first.code, first.out) == (0, "")
    assert first.err.endswith(f": hf_efficient {__version__}, 0 GPUs asked for, {tmp_path / 'out'}\n")
    assert check(attempt="1").out == "--resume\n"
    assert check(attempt="1", job="8").out == ""


def test_gpus_that_are_not_there(check, monkeypatch, tmp_path):
    monkeypatch.setattr("hf_efficient.jobs.nodes.accelerator_count", lambda: 3)
    assert check("--num-gpus", "3").code == 0
    ended = check("--num-gpus", "4")
    assert ended.code == 2
    assert "shows torch 3 GPUs, and the job needs 4. Check the driver there" in ended.err


def test_a_rank_that_is_none(check, tmp_path):
    ended = check("--nodes", "2", "--node-rank", "2")
    assert (ended.code, ended.err) == (2, "error: --node-rank: is 2, but --nodes 2 counts from 0 to 1.\n")
    assert not (tmp_path / "out").exists()
