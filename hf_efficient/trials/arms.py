"""The arms of a comparison: what each trains with, why one cannot run here, and the files that peers read.

To add an arm: a line in ``ARMS``, and what trains it: in ``arm_runs.py`` for this Python, in ``meter.py`` for another.
"""

import difflib
import importlib.util
import json
import math
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
from hf_efficient.trials.process import RESULT, TOKENS


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
        Arm("torchtune", "torchtune's lora_finetune_single_device", package="torchtune"),
        Arm("unsloth", "Unsloth", package="unsloth", no_arm_yet="bench does not start Unsloth yet"),
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
            raise SetupError(f"--peer-python: {name!r} has no Python of its own here. It takes {', '.join(own)}.")
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
    if arm.name == "torchtune":
        return _torchtune_lacks(recipe)
    if work.kind != "messages":
        return "its arm takes chats, and the recipe's examples are none"
    if recipe.model.tokenizer is not None or recipe.train.get("chat_template_path"):
        return "it reads tokenizer and template from the model's folder; the recipe names others"
    if not isinstance(recipe.adapter.target_modules, str) or recipe.adapter.target_modules == "all-linear":
        return ""
    return "adapter.target_modules is a regular expression, which it does not read"


_ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "output_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj"}
_SCHEDULES = ("linear", "cosine", "constant", "constant_with_warmup")
_LLAMA3_ROPE = {
    "rope_type": "llama3", "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192,
}  # fmt: skip


def _config_json(recipe: Recipe) -> dict[str, Any]:
    """That of a model's folder, its rope as transformers 5 writes it; empty without a folder."""
    path = Path(recipe.model.id, "config.json")
    if not path.is_file():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    earlier = {
        "rope_theta": found.get("rope_theta", 10_000.0),
        "rope_type": "default",
        **(found.get("rope_scaling") or {}),
    }
    return {**found, "rope_parameters": found.get("rope_parameters") or earlier}


def _torchtune_lacks(recipe: Recipe) -> str:
    """What torchtune's recipe for LoRA on Llama models would train otherwise than this one; empty if nothing."""
    model, adapter, train = _config_json(recipe), recipe.adapter, recipe.train
    if not (model and any(Path(recipe.model.id).glob("*.safetensors"))):
        return (
            "it reads a folder with config.json and *.safetensors; download the model and name its folder in model.id"
        )
    rope = model["rope_parameters"]
    if model["model_type"] != "llama" or (rope["rope_type"] != "default" and {**rope, **_LLAMA3_ROPE} != rope):
        return "its arm trains Llama models alone, with plain or Llama 3's rotary embeddings"
    names = set(_torchtune_targets(adapter.target_modules))
    if adapter.method == "full" or adapter.rslora or adapter.modules_to_save or adapter.bias != "none":
        return "its arm trains LoRA, DoRA and QLoRA alone: no rsLoRA, biases and modules_to_save"
    if adapter.quantization and (adapter.quantization.bits, adapter.quantization.type) != (4, "nf4"):
        return "it quantizes to NF4 alone; write adapter.quantization.bits=4 and adapter.quantization.type=nf4"
    if names - {*_ATTENTION, *_MLP} or names & _MLP not in (set(), _MLP):
        return "adapter.target_modules names what its arm does not train, or a part of the MLP"
    if train["optim"] not in ("adamw_torch", "adamw_torch_fused") or train["lr_scheduler_type"] not in _SCHEDULES:
        return f"its arm has AdamW and the schedules {', '.join(_SCHEDULES)} alone"
    return ""


def _torchtune_targets(named: str | list[str]) -> list[str]:
    """The layers by PEFT's names; a regular expression is left as it is, a name that no layer has."""
    return [*_ATTENTION, *sorted(_MLP)] if named == "all-linear" else [named] if isinstance(named, str) else named


def _torchtune_values(recipe: Recipe, tokens: Path) -> dict[str, Any]:
    model, train = Path(recipe.model.id), recipe.train
    names = _torchtune_targets(recipe.adapter.target_modules)
    warm_up = 0 if train["lr_scheduler_type"] == "constant" else train["warmup_steps"]
    return {
        "config": _config_json(recipe),
        "weights": sorted(one.name for one in model.glob("*.safetensors")),
        "attention": [own for name, own in _ATTENTION.items() if name in names],
        "mlp": bool(_MLP & set(names)),
        "warm_up": math.ceil(warm_up * train["max_steps"]) if warm_up < 1 else int(warm_up),
        "tokens": str(tokens),
    }


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
    result = str(folder / RESULT)
    if arm.name == "torchtune":
        return [python or sys.executable, str(Path(__file__).with_name("torchtune_arm.py")), str(config), result]
    return [python or sys.executable, str(Path(__file__).with_name("meter.py")), arm.name, str(config), result]


_SAME = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "max_grad_norm", "optim", "seed", "max_steps",
    "adam_beta1", "adam_beta2", "adam_epsilon",
)  # fmt: skip
"""Fields of transformers' ``TrainingArguments`` that peers read, most of them under their own names."""


def peer_settings(peer: str, recipe: Recipe, work: Work, folder: Path) -> str:
    """The file that a peer reads; for LLaMA-Factory also the ``dataset_info.json`` that names the rows."""
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
        **(_torchtune_values(recipe, Path(work.rows).with_name(TOKENS)) if peer == "torchtune" else {}),
    )
