"""A script of the user's own under ``hf-efficient run``, and the two examples."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hf_efficient.errors import SetupError
from hf_efficient.launch.script import check_target
from tests.conftest import tiny_chats

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-c", "from hf_efficient.cli.app import main; main()"]


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """``hf-efficient run ...`` in a process of its own."""
    return subprocess.run([*COMMAND, *args], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, tiny_llama_dir):
    """A tiny model and chats, as arguments of the examples."""
    chats = tmp_path_factory.mktemp("inputs") / "chats.jsonl"
    chats.write_text("".join(json.dumps(one) + "\n" for one in tiny_chats(8)))
    return ["--model", str(tiny_llama_dir), "--data", str(chats), "--cpu", "--max-steps", "2"]


@pytest.fixture(scope="module")
def instrumented(inputs, tmp_path_factory):
    """The plain example under ``hf-efficient run``: its folder, and how it ended."""
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, "run", str(EXAMPLES / "run_sft.py"), *inputs)


def account(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "outputs/run_sft/efficiency/run.json").read_text())


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "outputs/run_sft/adapter_model.safetensors")


def test_the_trainer_of_an_unchanged_script_writes_account_page_and_diagnosis(instrumented):
    folder, done = instrumented
    assert done.returncode == 0, done.stderr
    assert account(folder)["steps"]["count"] == 2
    written = {path.name for path in (folder / "outputs/run_sft/efficiency").iterdir()}
    assert {"run.json", "report.html", "diagnosis.json", "steps.jsonl", "spans.jsonl"} <= written
    phases = account(folder)["time"]["phase_seconds"]
    assert {"before_trainer", "trainer_setup", "forward", "backward", "optimizer"} <= set(phases)
    assert f"The page is {folder}/outputs/run_sft/efficiency/report.html\n" in done.stderr
    assert "The page is" not in done.stdout


@pytest.mark.slow
def test_the_examples_train_alike_and_differ_in_two_lines(instrumented, inputs, tmp_path):
    plain, ours = (EXAMPLES / name for name in ("run_sft.py", "run_sft_efficient.py"))
    other = ours.read_text().replace("hf_efficient.EfficientSFTTrainer(", "trl.SFTTrainer(")
    assert other.replace("\nimport hf_efficient\n", "") == plain.read_text()
    for script in (plain, ours):
        folder = tmp_path / script.stem
        folder.mkdir()
        done = subprocess.run([sys.executable, script, *inputs], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        expected, found = adapter(instrumented[0]), adapter(folder)
        assert expected.keys() == found.keys()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert not (tmp_path / "run_sft/outputs/run_sft/efficiency").exists()
    assert account(tmp_path / "run_sft_efficient")["steps"]["count"] == 2


SCRIPT = """\
import sys, helper
print(sys.argv, __name__, helper.HERE)
if "--fail" in sys.argv:
    raise OSError("no such luck")
sys.exit(7)
"""


def test_arguments_exit_code_and_exceptions_of_a_script_pass_through(tmp_path):
    script = tmp_path / "inner/train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    (script.parent / "helper.py").write_text("HERE = 1")
    done = run(tmp_path, "run", "inner/train.py", "--debug", "--help", "-m", "x")
    assert done.returncode == 7
    assert done.stdout == "['inner/train.py', '--debug', '--help', '-m', 'x'] __main__ 1\n"
    assert done.stderr == "inner/train.py built no Trainer of transformers or TRL: nothing was recorded.\n"
    plain = subprocess.run([sys.executable, "inner/train.py", "--fail"], cwd=tmp_path, capture_output=True, text=True)
    failed = run(tmp_path, "run", "inner/train.py", "--fail")
    assert failed.returncode == plain.returncode == 1
    assert failed.stderr.startswith(plain.stderr.replace(str(script), "inner/train.py"))


def test_what_is_not_there_is_named(tmp_path):
    done = run(tmp_path, "run", "gone.py")
    assert done.returncode == 2
    assert done.stderr == "error: gone.py: there is no such script; name a Python file, or `-m MODULE`\n"
    with pytest.raises(SetupError, match=r"-m no\.such: there is no such module; name one that `python -m no\.such`"):
        check_target("no.such", module=True)


@pytest.mark.slow
def test_the_example_of_a_classifier_learns_and_has_the_same_account(tmp_path):
    script = EXAMPLES / "classify_sentiment.py"
    command = [sys.executable, script, "--cpu", "--max-steps", "80", "--output-dir", tmp_path / "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out/efficiency/run.json").read_text())
    assert found["steps"]["count"] == 80
    assert found["tokens"]["non_padding"] > 80 * 16 * 8
    assert found["evaluations"][-1]["metrics"]["accuracy"] > 0.85
    assert (tmp_path / "out/model.safetensors").is_file()
