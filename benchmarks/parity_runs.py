"""The trainings whose losses are compared: a launch for each strategy, in which all of its trainings follow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from processes import run_to_end

from hf_efficient.launch.command import accelerate_command, layout_of
from hf_efficient.recipe.load import load_recipe

__all__ = ["REFERENCE", "STRATEGIES", "launch", "losses_of", "run_strategy", "trainings_of", "write_recipe"]

REFERENCE = "none"
STRATEGIES: dict[str, dict[str, Any]] = {
    "none": {"strategy": "none", "processes": 1},
    "ddp": {"strategy": "ddp", "processes": 2},
    "zero1": {"strategy": "zero1", "processes": 2},
    "zero2": {"strategy": "zero2", "processes": 2},
    "zero3": {"strategy": "zero3", "processes": 2},
    "zero3+offload": {"strategy": "zero3", "processes": 2, "offload": {"optimizer": True, "parameters": True}},
    "fsdp2": {"strategy": "fsdp2", "processes": 2},
}
"""``distributed`` of each recipe."""
_ADAPTERS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "lora": {"method": "lora", "r": 8},
    "qlora": {"method": "qlora", "r": 8, "quantization": {"compute_dtype": "float32"}},
}
_NO_QLORA = ("zero3", "zero3+offload")
"""ZeRO-3 cannot share packed 4-bit weights out."""
_PRECISIONS = {"fp32": False, "bf16": True}
_ROWS_PER_STEP, _ROWS_PER_MICRO_BATCH = 8, 2
_SECONDS = 900


def trainings_of(strategy: str) -> list[str]:
    """``METHOD-PRECISION`` of each; QLoRA, whose weights are 4-bit anyway, in float32 alone."""
    methods = [name for name in _ADAPTERS if not (name == "qlora" and strategy in _NO_QLORA)]
    return [
        f"{name}-{precision}" for name in methods for precision in _PRECISIONS if (name, precision) != ("qlora", "bf16")
    ]


def run_strategy(strategy: str, folder: Path, steps: int, trainings: Sequence[str] | None = None) -> None:
    """Train one after the other, in a launch.

    Args:
        strategy: of ``STRATEGIES``.
        folder: that holds the inputs, and takes the runs.
        steps: of each training.
        trainings: default: all.

    Raises:
        RuntimeError: the launch failed; tells the end of what it printed.
    """
    names = trainings or trainings_of(strategy)
    launch([write_recipe(strategy, name, folder, max_steps=steps) for name in names], folder)


def launch(recipes: Sequence[Path], folder: Path, overrides: Sequence[str] = ()) -> None:
    """Run recipes in two processes, or one, as ``hf-efficient train`` would launch the first of them.

    Raises:
        RuntimeError: the launch failed; tells the end of what it printed.
    """
    recipe = load_recipe(recipes[0], overrides)
    command = accelerate_command(recipe, "", [], layout_of(recipe, device_count=0, cores=2))
    command[0] = str(Path(sys.executable).with_name("accelerate"))  # it may be told relative to the current folder
    here = Path(__file__).resolve().parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_EFFICIENT_CACHE": str(folder / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    port = ["--main_process_port=0"]  # a free one: another launch may begin at this moment
    worker = [str(here / "parity_worker.py"), *map(str, recipes), *overrides]
    status, printed = run_to_end([*command[: command.index("-m")], *port, *worker], folder, _SECONDS, environment)
    if status != 0:
        raise RuntimeError(f"{recipe.name} ended with {status}: {printed[-4000:]}")


def losses_of(strategy: str, folder: Path) -> dict[str, list[float]]:
    """The loss of every step, by training."""
    told = {}
    for run in sorted((folder / strategy).iterdir()):
        state = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))
        told[run.name] = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return told


def write_recipe(strategy: str, training: str, folder: Path, **train: Any) -> Path:
    """A recipe of a training, with more fields of ``train``."""
    method, precision = training.split("-")
    recipe = {
        "name": f"parity-{training}",
        "model": {"id": str(folder / "model"), "dtype": "float32"},
        "adapter": _ADAPTERS[method],
        "data": {"train": [{"path": str(folder / "sums.jsonl")}]},
        "train": {
            "max_length": 32,
            "per_device_train_batch_size": _ROWS_PER_MICRO_BATCH,
            "gradient_checkpointing": False,
            "learning_rate": 1e-3,
            "bf16": _PRECISIONS[precision],
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            **train,
        },
        "distributed": {**STRATEGIES[strategy], "global_batch_size": _ROWS_PER_STEP},
        "efficiency": {"plan": False},
        "output_dir": str(folder / strategy / training),
    }
    path = folder / f"{strategy}-{training}.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path
