"""The output directory: refuse, resume or overwrite, and what is written there besides the model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_efficient.errors import OutputError
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.yaml_dump import dump_yaml

__all__ = ["EFFICIENCY", "OutputPlan", "follow_output", "prepare_output", "write_resolved_recipe"]

EFFICIENCY = "efficiency"
"""Folder of the records inside the output directory."""

RESOLVED = "recipe.resolved.yaml"
_RUN_FILES = (
    EFFICIENCY, "merged", "README.md", "adapter_config.json", "adapter_model.safetensors", "config.json",
    "generation_config.json", "model.safetensors", "model.safetensors.index.json", "training_args.bin",
    "trainer_state.json", "all_results.json", "train_results.json", "eval_results.json", "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
)  # fmt: skip
_SIGNS_OF_A_RUN = (EFFICIENCY, "adapter_config.json", "config.json")


@dataclass(frozen=True)
class OutputPlan:
    """What becomes of the output directory.

    Attributes:
        directory: the output directory.
        checkpoint: the checkpoint to resume from; None for a run from the start.
    """

    directory: Path
    checkpoint: Path | None


def prepare_output(recipe: Recipe) -> OutputPlan:
    """Decide where the run starts from, and make the directory ready.

    ``existing_output: overwrite`` removes what a run writes (checkpoints, weights, records), nothing else.

    Raises:
        OutputError: another run lies there and the recipe does not say what to do; it was another model or adapter
            than the one to be resumed; the checkpoint named does not exist; the directory cannot be written.
    """
    directory = Path(recipe.output_dir).expanduser()
    named = recipe.train.get("resume_from_checkpoint")
    _check_writable(directory)
    if named:
        return OutputPlan(directory, _named_checkpoint(Path(str(named)).expanduser(), recipe))
    if not _holds_a_run(directory):
        return OutputPlan(directory, None)
    if recipe.existing_output == "overwrite":
        _remove_run(directory)
        return OutputPlan(directory, None)
    checkpoints = _checkpoints(directory)
    if recipe.existing_output == "resume":
        if not checkpoints:  # it ended before its first checkpoint: nothing to lose
            _remove_run(directory)
            return OutputPlan(directory, None)
        _check_same_model(directory, recipe)
        return OutputPlan(directory, checkpoints[-1])
    last = f" (its last checkpoint is {checkpoints[-1].name})" if checkpoints else ""
    raise OutputError(
        f"output_dir: {directory} already holds a run{last}. Go on with it by --resume, replace it by --overwrite, "
        "or write another output_dir=..."
    )


def follow_output(recipe: Recipe) -> OutputPlan:
    """What the main process decided, read by the other processes after it."""
    directory = Path(recipe.output_dir).expanduser()
    named = recipe.train.get("resume_from_checkpoint")
    if named:
        return OutputPlan(directory, Path(str(named)).expanduser())
    checkpoints = _checkpoints(directory) if recipe.existing_output == "resume" else []
    return OutputPlan(directory, checkpoints[-1] if checkpoints else None)


def write_resolved_recipe(directory: Path, recipe: Recipe, environment: Mapping[str, Any]) -> Path:
    """Write the recipe with all its values, where each was set, and what it ran on, to the run directory.

    Raises:
        OutputError: the file cannot be written.
    """
    path = directory / EFFICIENCY / RESOLVED
    content = {
        "recipe": recipe.resolved(),
        "provenance": {key: str(origin) for key, origin in recipe.provenance.items() if origin.source != "default"},
        "environment": dict(environment),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml(content), encoding="utf-8")
    except OSError as error:
        raise OutputError(f"output_dir: {path} cannot be written: {error}") from error
    return path


def _checkpoints(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first: one whose saving was cut off has no ``trainer_state.json``, its last file."""
    found = [
        (int(path.name.removeprefix("checkpoint-")), path)
        for path in directory.glob("checkpoint-*")
        if path.name.removeprefix("checkpoint-").isdigit() and (path / "trainer_state.json").is_file()
    ]
    return [path for _, path in sorted(found)]


def _named_checkpoint(path: Path, recipe: Recipe) -> Path:
    if (path / "trainer_state.json").is_file():
        _check_same_model(path.parent, recipe)
        return path
    others = ", ".join(str(found) for found in _checkpoints(path.parent)) or "none"
    raise OutputError(f"train.resume_from_checkpoint: {path} is not a whole checkpoint. Beside it there are: {others}.")


def _holds_a_run(directory: Path) -> bool:
    return any((directory / name).exists() for name in _SIGNS_OF_A_RUN) or any(directory.glob("checkpoint-*"))


def _remove_run(directory: Path) -> None:
    for path in [*directory.glob("checkpoint-*"), *(directory / name for name in _RUN_FILES)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.exists() or path.is_symlink():
            path.unlink()


def _check_same_model(directory: Path, recipe: Recipe) -> None:
    """A checkpoint of another model or adapter would load in part, or not at all, and say neither."""
    try:
        stored = yaml.safe_load((directory / EFFICIENCY / RESOLVED).read_text(encoding="utf-8"))["recipe"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return  # not written by us: transformers' own checks remain
    now = recipe.resolved()
    differing = [
        f"{section}.{key} (was {stored.get(section, {}).get(key)!r}, is {value!r})"
        for section in ("model", "adapter")
        for key, value in now[section].items()
        if key != "merge" and stored.get(section, {}).get(key) != value
    ]
    if stored.get("method") != now["method"]:
        differing.append(f"method (was {stored.get('method')!r}, is {now['method']!r})")
    if differing:
        raise OutputError(
            f"output_dir: the run in {directory} cannot be resumed with another {'; '.join(differing)}. "
            "Put the values back, or write another output_dir."
        )


def _check_writable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(f"output_dir: {directory} cannot be written: {error.strerror or error}.") from error
