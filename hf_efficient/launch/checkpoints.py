"""The Trainer's checkpoints in an output directory, and whether a run can go on from one exactly."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from hf_efficient.launch.checkpoint_layout import has_fsdp_shards, has_zero_shares

__all__ = ["checkpoints", "fault_of", "step_of"]

_PICKLED_WEIGHTS = ("pytorch_model.bin", "adapter_model.bin", "pytorch_model.bin.index.json")


def checkpoints(directory: Path) -> list[Path]:
    """All folders ``checkpoint-N``, whole or not, by their step."""
    found = [path for path in directory.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=step_of)


def step_of(checkpoint: Path) -> int:
    """The N of ``checkpoint-N``; 0 for a folder of another name."""
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def fault_of(checkpoint: Path) -> str | None:
    """What keeps a run from going on exactly from here; None where nothing does.

    Weights, optimizer, schedule and random state must be there and whole. What DeepSpeed wrote in its own layout is
    left to DeepSpeed.
    """
    if not checkpoint.is_dir():
        return "there is no such folder"
    try:
        fault = _state_fault(checkpoint)
        if fault is not None or has_zero_shares(checkpoint):
            return fault
        return _shards_fault(checkpoint) if has_fsdp_shards(checkpoint) else _files_fault(checkpoint)
    except OSError as error:
        return f"{error.filename or checkpoint} cannot be read: {error.strerror or error}"


def _state_fault(checkpoint: Path) -> str | None:
    path = checkpoint / "trainer_state.json"
    if not path.is_file():
        return "trainer_state.json, its last file, is missing: saving was cut off"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return "trainer_state.json is not whole"
    return None if isinstance(state, dict) and "global_step" in state else "trainer_state.json holds no state"


def _shards_fault(checkpoint: Path) -> str | None:
    """FSDP's: torch writes the description of the shards after all of them."""
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        if not (checkpoint / name / ".metadata").is_file():
            return f"{name}/.metadata, its last file, is missing: saving was cut off"
    return None if (checkpoint / "scheduler.pt").is_file() else "scheduler.pt is missing"


def _files_fault(checkpoint: Path) -> str | None:
    weights = sorted(checkpoint.glob("*.safetensors"))
    if not weights and not any((checkpoint / name).is_file() for name in _PICKLED_WEIGHTS):
        return "it holds no weights"
    for path in weights:
        try:
            with safe_open(path, framework="np"):
                pass
        except SafetensorError:
            return f"{path.name} is not whole"
    random_state = "rng_state.pth" if (checkpoint / "rng_state.pth").is_file() else "rng_state_0.pth"
    for name in ("optimizer.pt", "scheduler.pt", random_state):
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing (it was saved with train.save_only_model, or a file was lost)"
        if not zipfile.is_zipfile(path):
            return f"{name} is not whole"
    return None
