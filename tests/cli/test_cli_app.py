"""How `hf-efficient` lists, finds and ends its commands."""

import json
import logging
import os
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import typer

from hf_efficient.cli.app import COMMANDS, main, messages_on_stderr
from hf_efficient.errors import DataError, RecipeError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Put a function behind the name ``probe`` of the table."""

    def install(function) -> None:
        module = ModuleType("hf_efficient.cli.probe")
        module.probe = function
        monkeypatch.setitem(sys.modules, "hf_efficient.cli.probe", module)
        monkeypatch.setitem(COMMANDS, "probe", "A probe.")

    return install


def test_help_lists_every_command(run):
    ended = run("--help")
    assert (ended.code, ended.err) == (0, "")
    rows = [line.strip("│ \n").split(maxsplit=1) for line in ended.out.splitlines() if line.startswith("│ ")]
    assert {name: told for name, told in rows if name in COMMANDS} == COMMANDS
    assert "─ Before a run ─" in ended.out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_exists_and_shows_an_example(run, name):
    ended = run(name, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert f"Example: hf-efficient {name}" in ended.out


def test_help_imports_nothing_heavy():
    code = (
        "import atexit, sys\nfrom hf_efficient.cli.app import main\n"
        "heavy = {'torch', 'transformers', 'trl', 'pydantic', 'yaml', 'numpy'}\n"
        "atexit.register(lambda: print(heavy & set(sys.modules)))\nmain(['--help'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_package_of_an_extra_that_is_not_installed(run, command):
    def probe() -> None:
        import_module("peft.tuners")

    command(probe)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "peft.tuners", None)
        ended = run("probe")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: The package peft, for recipes and TRL's trainers, is not installed: run `pip")


def test_an_unknown_command_names_the_nearest(run):
    ended = run("vlidate", "r.yaml")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.endswith("Error: No such command 'vlidate'. Did you mean 'validate'?\n")


@pytest.mark.parametrize("args", [("--oops",), ("validate",), ("validate", "r.yaml", "--oops"), ("recipes", "sho")])
def test_wrong_usage_exits_with_2(run, args):
    ended = run(*args)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err


DEFECT = """\
error: this is a defect of hf_efficient: ValueError: two lines. Run it again with --debug for the traceback, and \
report it with the output of `hf-efficient env`.
"""


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("tune", "r.yaml", "--minutes", "20m"), "--minutes: takes a number"),
        (("export", "run", "--limit", "few"), "--limit: takes a whole number"),
    ],
)
def test_a_flag_s_number_with_a_unit_is_answered_with_what_to_write(run, args, told):
    ended = run(*args)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"error: {told}, and got something else. Write it without a unit: {args[2]} 20.\n"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (DataError("chats.jsonl:3: is no JSON."), 2, "error: chats.jsonl:3: is no JSON.\n"),
        (KeyboardInterrupt(), 130, ""),
        (typer.Exit(1), 1, ""),  # the answer is no
        (SystemExit(77), 77, ""),
        (ValueError("two\nlines"), 1, DEFECT),
    ],
)
def test_how_a_command_ends(run, command, raised, code, said):
    def probe() -> None:
        raise raised

    command(probe)
    assert run("probe") == (code, "", said)
    if isinstance(raised, ValueError):
        ended = run("probe", "--debug")
        assert (ended.code, ended.err.startswith("Traceback")) == (1, True)
        assert ended.err.endswith("ValueError: two\nlines\n")


def test_every_problem_has_a_line_of_its_own(run, recipe):
    recipe.write_text("name: t\nmodle: {}\n", encoding="utf-8")
    ended = run("validate", "r.yaml", "oops")
    assert (ended.code, ended.out) == (2, "")
    assert [line.split(": ")[:3] for line in ended.err.splitlines()] == [
        ["error", "r.yaml", "model"],
        ["error", "r.yaml", "data"],
        ["error", "r.yaml:2", "modle"],
        ["error", "command line", "oops"],
    ]


@pytest.mark.parametrize("args", ["--debug validate r.yaml", "validate --debug r.yaml", "validate r.yaml --debug"])
def test_debug_anywhere_shows_the_traceback(run, recipe, args):
    recipe.write_text("- 1\n", encoding="utf-8")
    ended = run(*args.split())
    assert (ended.code, RecipeError.__name__ in ended.err) == (2, True)
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert ended.err.splitlines()[-1].startswith("error: r.yaml: holds a list")


def test_a_command_with_a_debug_of_its_own_gets_it(run, command):
    def probe(word: str, debug: bool = False) -> None:
        print(word, debug)

    command(probe)
    assert run("probe", "x").out == "x False\n"
    assert run("probe", "x", "--debug").out == "x True\n"
    assert run("--debug", "probe", "x").out == "x True\n"


def test_the_package_s_messages_go_to_stderr_during_the_block(capsys):
    logger = logging.getLogger("hf_efficient.recipe.train_fields")
    with messages_on_stderr():
        logger.info("told %d", 1)
        logger.debug("not told")
        logging.getLogger("bitsandbytes").info("not told either")
    logger.info("too late")
    assert capsys.readouterr() == ("", "told 1\n")


@pytest.mark.slow
def test_the_first_start_says_what_it_waits_for_and_nothing_else(recipe, tmp_path):
    command = [sys.executable, "-c", "from hf_efficient.cli.app import main; main()", "validate", "r.yaml"]
    Path("chats.jsonl").write_text('{"text": "a"}\n')
    environment = {**os.environ, "HF_EFFICIENT_CACHE": str(tmp_path / "empty")}
    runs = (subprocess.run(command, capture_output=True, text=True, env=environment, check=True) for _ in range(2))
    first, second = runs
    assert first.stderr == "Reading the fields of the installed TRL (once per version) ...\n"
    assert second.stdout.startswith("ok: tiny (sft, lora)\n")
    assert second.stderr == ""
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    ("args", "written"),
    [
        ("plan r.yaml --learning_rate 1e-4", "train.learning_rate=1e-4"),
        ("train r.yaml --per-device-train-batch-size=8", "train.per_device_train_batch_size=8"),
        ("validate r.yaml --model_name_or_path a/b", "model.id=a/b"),
        ("validate r.yaml --train.seed 'a b'", "train.seed='a b'"),
        ("recipes show r.yaml --lora_r 8", "adapter.r=8"),
        ("validate r.yaml --lora_alpha", "adapter.alpha=VALUE"),
        ("validate r.yaml --packing", "train.packing=true"),
        ("plan r.yaml --gpus 8", "--gpu NAME for the kind of GPU, --num-gpus N for their number."),
        ("train r.yaml --gpus 8", "--num-gpus N for their number."),
        ("train r.yaml --nproc_per_node 8", "--num-gpus N for their number."),
        ("submit r.yaml --gpu-type H100", "--gpu NAME for the kind of GPU."),
        ("plan r.yaml --gpu-memory 24", "--gpu 'RTX 3090', or hf-efficient recipes --gpu-memory GB."),
        ("recipes --gpu A10", "--gpu-memory GB, for instance 24."),
        ("isolate r.yaml --num-gpus 2", "distributed.processes=N for their number."),
    ],
)
def test_a_key_as_a_flag_is_answered_with_what_to_write(run, recipe, args, written):
    ended = run(*shlex.split(args))
    flag = next(one for one in args.split() if one.startswith("--")).partition("=")[0]
    assert ended == (2, "", f"error: {flag}: is no flag. Write {written}\n")


def test_a_recipe_to_show(run):
    told = "error: quickstart/qlora: is no command. Write hf-efficient recipes show quickstart/qlora --explain\n"
    assert run("recipes", "quickstart/qlora", "--explain") == (2, "", told)


def test_json_is_alone_on_standard_output(tmp_path):
    """Whatever Python, C code and child processes print meanwhile."""
    code = (
        "import os, sys\nfrom types import ModuleType\nfrom hf_efficient.cli import app, output\n"
        "def probe(as_json: app.Annotated[bool, app.typer.Option('--json')] = False) -> None:\n"
        "    'Probe.'\n    print('noise')\n    os.system('echo more')\n    output.print_json({'a': 1})\n"
        "module = sys.modules['hf_efficient.cli.probe'] = ModuleType('probe')\nmodule.probe = probe\n"
        "app.COMMANDS['probe'] = 'A probe.'\napp.main(['probe', *sys.argv[1:]])\n"
    )
    told = [
        subprocess.run([sys.executable, "-c", code, *flags], capture_output=True, text=True, check=True)
        for flags in (["--json"], [])
    ]
    assert (told[0].stdout, sorted(told[0].stderr.split())) == ('{\n  "a": 1\n}\n', ["more", "noise"])
    assert told[1].stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["plan RECIPE --gpu T4", "data RECIPE", "isolate RECIPE --steps 6", "recipes", "env"]
)
def test_json_is_alone_on_standard_output_of_a_process(command, tiny_recipe_file):
    """With what the installed libraries print when they are imported, DeepSpeed's first of all."""
    words = [str(tiny_recipe_file) if word == "RECIPE" else word for word in command.split()]
    code = "from hf_efficient.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *words, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "completed"), [("hf-efficient pla", "plan"), ("hf-efficient plan quickstart/q", "quickstart/qlora")]
)
def test_the_shell_completes(words, completed):
    place = str(len(words.split()) - 1)
    variables = {"_HF_EFFICIENT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": place}
    code = [sys.executable, "-c", "from hf_efficient.cli.app import main; main([])"]
    done = subprocess.run(code, capture_output=True, text=True, env={**os.environ, **variables}, check=False)
    assert done.stdout.split() == [completed]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("generate a/b", "--prompts: is missing. Write --prompts FILE (JSONL with "),
        ("prune r.yaml --layers 2", "--output: is missing. Write --output DIR (Where to write the model"),
        ("report", "RUN_DIR: is missing. Write RUN_DIR (Output directory of a run)."),
    ],
)
def test_what_is_missing_is_named_with_what_to_write(command, told, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {told}")
