"""The arms of a comparison: what each trains with, why one cannot run here, and the files that peers read.

To add an arm: a line in ``ARMS``, and what trains it: in ``arm_runs.py`` for this Python, in ``meter.py`` for another.
"""

import difflib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_efficient.errors import SetupError
from hf_efficient.recipe.load import rendered
from hf_efficient.recipe.schema import QuantizationSection, Recipe, mixed_precision
from hf_efficient.records.bench import Work
from hf_efficient.trials.process import RESULT


@dataclass(frozen=True)
class Arm:
    """``changes`` of the recipe, which `hf-efficient train` then runs; or the ``package`` of a peer, which its own
    command trains in its own Python. Without both a worker of ours trains it."""

    name: str
    what: str
    changes: Mapping[str, Any] | None = None
    package: str = ""
    no_arm_yet: str = ""  # why there is none, on any machine


_PLAIN = {"model.attn_implementation": None, "adapter.fused": False, "train.loss_type": "nll"}

ARMS: dict[str, Arm] = {
    one.name: one
    for one in (
        Arm("trl", "SFTTrainer as it comes, padded"),
        Arm("trl_packed", "SFTTrainer, packed rows, its chunked loss"),
        Arm("bare", "a loop by hand on the recipe's batches and layers, no Trainer"),
        Arm("recipe_plain", "hf-efficient train, no fast key", changes=_PLAIN),
        Arm("recipe", "hf-efficient train", changes={}),
        Arm("llamafactory", "llamafactory-cli train", package="llamafactory"),
        Arm("axolotl", "axolotl train", package="axolotl"),
        Arm("unsloth", "Unsloth", package="unsloth", no_arm_yet="bench does not start Unsloth yet"),
        Arm("torchtune", "torchtune", package="torchtune", no_arm_yet="bench does not start torchtune yet"),
    )
}


def named_arms(names: Sequence[str], flag: str) -> list[Arm]:
    """The arms of a list; ``SetupError`` for a name that is unknown, or there twice."""
    for name in names:
        if name not in ARMS:
            close = difflib.get_close_matches(name, ARMS, n=1)
            hint = f"Did you mean {close[0]}? " if close else ""
            raise SetupError(f"{flag}: {name!r} is no arm. {hint}The arms are {', '.join(ARMS)}.")
        if list(names).count(name) > 1:
            raise SetupError(f"{flag}: {name} is named twice. Write each arm once.")
    return [ARMS[name] for name in names]


def peer_pythons(given: Sequence[str]) -> dict[str, str]:
    """``NAME=PYTHON`` of each ``--peer-python``; ``SetupError`` for a name without a Python of its own, or no file."""
    found = {}
    own = [name for name, arm in ARMS.items() if arm.package and not arm.no_arm_yet]
    for one in given:
        name, _, python = one.partition("=")
        if not python:
            raise SetupError(f"--peer-python: {one} names no Python. Write {own[0]}=/path/to/venv/bin/python.")
        if name not in own:
            raise SetupError(f"--peer-python: {name!r} has no Python of its own here. It takes {' and '.join(own)}.")
        if not Path(python).expanduser().is_file():
            raise SetupError(f"--peer-python: {python} is no file. Write the Python of the environment with {name}.")
        found[name] = str(Path(python).expanduser())
    return found


def obstacle(arm: Arm, work: Work, recipe: Recipe, pythons: Mapping[str, str]) -> str:
    """Why an arm cannot run here; empty where it can."""
    if not arm.package:
        return ""
    if arm.no_arm_yet:
        return arm.no_arm_yet if work.device == "cuda" else "needs a GPU, and this machine has none"
    python = pythons.get(arm.name)
    if python is None and importlib.util.find_spec(arm.package) is None:
        return f"not installed in this environment; name a Python that has it: --peer-python {arm.name}=PYTHON"
    if python is not None and (lacking := _import_error(python, arm.package)):
        return f"{python} cannot import {arm.package}: {lacking}"
    if work.kind != "messages":
        return "its arm takes chats, and the recipe's examples are none"
    if recipe.model.tokenizer is not None or recipe.train.get("chat_template_path"):
        return "it reads tokenizer and template from the model's folder; the recipe names others"
    if not isinstance(recipe.adapter.target_modules, str) or recipe.adapter.target_modules == "all-linear":
        return ""
    return "adapter.target_modules is a regular expression, which it does not read"


def _import_error(python: str, package: str) -> str:
    try:
        done = subprocess.run(
            [python, "-c", f"import {package}"], capture_output=True, text=True, check=False, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")


def peer_command(arm: Arm, work: Work, recipe: Recipe, python: str | None, folder: Path) -> list[str]:
    """What trains a peer; writes the file that it reads into the folder."""
    config = folder / f"{arm.name}.yaml"
    config.write_text(peer_settings(arm.name, recipe, work, folder), encoding="utf-8")
    meter = Path(__file__).with_name("meter.py")
    return [python or sys.executable, str(meter), arm.name, str(config), str(folder / RESULT)]


_SAME = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim", "seed", "max_steps",
    "adam_beta1", "adam_beta2", "adam_epsilon",
)  # fmt: skip
"""Fields of transformers' ``TrainingArguments`` that peers read, most of them under their own names."""


def peer_settings(peer: str, recipe: Recipe, work: Work, folder: Path) -> str:
    """The file that LLaMA-Factory or Axolotl reads, with the ``dataset_info.json`` that names the rows to the first."""
    if peer == "llamafactory":
        tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
        rows = {"file_name": work.rows, "formatting": "sharegpt", "columns": {"messages": "messages"}}
        info = {"rows": {**rows, "tags": {**tags, "system_tag": "system"}}}
        (folder / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")
    packs = bool(recipe.train.get("packing"))
    return rendered(
        Path(__file__).with_name(f"{peer}.yaml.jinja"),
        recipe=recipe,
        adapter=recipe.adapter,
        quantization=recipe.adapter.quantization or QuantizationSection(),
        work=work,
        rows=work.packed_rows if packs else work.padded_rows,
        packs=packs,
        bf16=mixed_precision(recipe) == "bf16",
        checkpointing=recipe.train.get("gradient_checkpointing", True),
        same={name: recipe.train[name] for name in _SAME if name in recipe.train},
        folder=str(folder),
        output_dir=str(folder / "run"),
    )
