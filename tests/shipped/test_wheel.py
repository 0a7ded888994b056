"""The wheel: what is in it, and that its core works where the packages of the extras are not installed."""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = {"trl", "peft", "datasets", "evaluate", "gguf", "bitsandbytes", "deepspeed", "pyarrow", "pandas"}
OURS = re.compile(r"(__editable__|_)?\W*hf_efficient")

USE = """\
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import hf_efficient
from hf_efficient.recipe.files import shipped_files, shipped_root

assert "site-packages" in hf_efficient.__file__, hf_efficient.__file__
shape = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 8
trainer = hf_efficient.EfficientTrainer(
    model=LlamaForCausalLM(LlamaConfig(**shape)),
    args=TrainingArguments("out", max_steps=2, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True),
    train_dataset=rows,
)
hf_efficient.show_plan(hf_efficient.plan(trainer, ["A10"]))
trainer.train()
account = hf_efficient.load_run("out")
assert (account.recorded_by, account.ended) == ("trainer", "done"), account
print("findings:", len(hf_efficient.diagnose("out").findings))
print("recipes:", len(shipped_files(shipped_root())))
try:
    hf_efficient.EfficientSFTTrainer
except ImportError as error:
    print("missing:", error)
print("imported:", sorted(EXTRAS & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_trainer_is_planned_and_trained_without_the_extras(tmp_path):
    """As below, of the source: what an import would bring in is known to be missing."""
    use = USE.replace('assert "site-packages" in', 'assert "hf_efficient" in')
    hidden = f"import sys\nEXTRAS = {EXTRAS!r}\nsys.modules.update(dict.fromkeys(EXTRAS))\n"
    command = [sys.executable, "-c", hidden + use.replace('print("imported:', 'print("done") #')]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_EFFICIENT_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Fits A10" in done.stdout
    assert done.stdout.endswith("done\n")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``bin`` of an environment with the wheel, and with what is installed here except the packages of the extras."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    install = ["install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    others = folder / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        name = path.name.lower().partition("-")[0].partition(".")[0]
        if name not in EXTRAS and not OURS.match(name) and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")
    return python.parent


def call(installed: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_EFFICIENT_CACHE": str(cwd / "cache"), "HOME": str(cwd), "COLUMNS": "120"}
    return subprocess.run([installed / args[0], *args[1:]], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package_and_the_recipes(wheel):
    def tracked(folder: str) -> set[str]:
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        return set(done.stdout.splitlines())

    expected = tracked("hf_efficient") | {f"hf_efficient/shipped_{name}" for name in tracked("recipes")}
    with zipfile.ZipFile(wheel) as held:
        names = {name for name in held.namelist() if name.startswith("hf_efficient/")}
    assert names == expected


@pytest.mark.slow
def test_its_core_asks_for_no_package_of_an_extra(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as held:
        held.extractall(tmp_path)
    (info,) = tmp_path.glob("*.dist-info")
    needs = PathDistribution(info).requires or []
    core = {re.split(r"[^\w-]", need)[0] for need in needs if "extra ==" not in need}
    assert core & EXTRAS == set()
    assert {"torch", "transformers", "accelerate", "msgspec", "numpy", "jinja2"} <= core
    of_recipes = {re.split(r"[^\w-]", need)[0] for need in needs if 'extra == "recipes"' in need.replace("'", '"')}
    assert of_recipes == {"trl", "peft", "datasets", "evaluate", "gguf", "transformers"}


@pytest.mark.slow
def test_the_core_works_without_the_extras(installed, tmp_path):
    help_page = call(installed, "hf-efficient", "--help", cwd=tmp_path)
    assert (help_page.returncode, "report" in help_page.stdout) == (0, True), help_page.stderr

    (tmp_path / "use.py").write_text(f"EXTRAS = {EXTRAS!r}\n{USE}")
    used = call(installed, "python", "use.py", cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    assert "Fits A10" in used.stdout
    recipes = [path for path in (ROOT / "recipes").rglob("*.yaml") if {"bases", "accelerate"}.isdisjoint(path.parts)]
    assert f"recipes: {len(recipes)}\n" in used.stdout
    assert "imported: []" in used.stdout
    assert "missing: The package trl, for recipes and TRL's trainers, is not installed" in used.stdout

    report = call(installed, "hf-efficient", "report", "out", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "out/efficiency/report.html").stat().st_size > 10_000
    assert call(installed, "hf-efficient", "diagnose", "out", cwd=tmp_path).returncode in (0, 1)
    assert call(installed, "hf-efficient", "env", cwd=tmp_path).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [["plan", "quickstart/qlora"], ["train", "quickstart/qlora"]])
def test_what_needs_an_extra_names_it(command, installed, tmp_path):
    done = call(installed, "hf-efficient", *command, cwd=tmp_path)
    told = "error: The package trl, for recipes and TRL's trainers, is not installed: run `pip install"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(told), done.stderr
    assert len(done.stderr.splitlines()) == 1
