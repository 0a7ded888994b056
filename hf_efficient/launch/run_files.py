"""What a run writes to its output directory, and how to tell that a directory is a run of ours."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from hf_efficient.account.load import STARTING
from hf_efficient.errors import OutputError

__all__ = [
    "EFFICIENCY",
    "PREFLIGHT_JSON",
    "RESOLVED",
    "STARTING",
    "has_final_weights",
    "is_a_run",
    "remove",
    "remove_if_empty",
    "remove_run",
    "replaced_by_a_run",
]

EFFICIENCY = "efficiency"
"""Folder of the records inside the output directory."""

RESOLVED = "recipe.resolved.yaml"
"""The recipe as it ran; written when training starts, and the sign that a run of ours lies here."""

PREFLIGHT_JSON = "preflight.json"
"""What was proven before the run; it outlives the run that it replaces."""

_WEIGHTS = ("adapter_model.safetensors", "model.safetensors", "model.safetensors.index.json")
_OTHERS = (
    "README.md", "adapter_config.json", "config.json", "generation_config.json", "training_args.bin",
    "trainer_state.json", "all_results.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja", "merged",
)  # fmt: skip


def is_a_run(directory: Path) -> bool:
    """Whether a run of ours started training here."""
    return (directory / EFFICIENCY / RESOLVED).is_file()


def has_final_weights(directory: Path) -> bool:
    """Whether a run was saved here at its end."""
    return any((directory / name).is_file() for name in _WEIGHTS)


def replaced_by_a_run(directory: Path) -> list[Path]:
    """What lies here already and a run would replace: weights, checkpoints, card and the like."""
    named = (directory / name for name in (*_WEIGHTS, *_OTHERS))
    shards = (*directory.glob("model-*-of-*.safetensors"), *directory.glob("checkpoint-*"))
    return [path for path in (*named, *shards) if path.exists() or path.is_symlink()]


def remove_run(directory: Path, *, keep_records: bool = False) -> None:
    """Remove what a run of ours wrote, and nothing else; the records of a start that is to replace it stay.

    Args:
        directory: the output directory.
        keep_records: leave the records of its processes, to which the next one adds its own.

    Raises:
        OutputError: something cannot be removed.
    """
    records: list[Path] = []
    if not keep_records and (directory / EFFICIENCY).is_dir():
        records = [path for path in (directory / EFFICIENCY).iterdir() if path.name not in (STARTING, PREFLIGHT_JSON)]
    for path in (*replaced_by_a_run(directory), *records):
        remove(path)
    if not keep_records:
        remove_if_empty(directory / EFFICIENCY)


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with what is in it; one that is not there is none.

    Raises:
        OutputError: it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"output_dir: {path} cannot be removed: {error.strerror or error}.") from error


def remove_if_empty(directory: Path) -> None:
    """Remove a folder that holds nothing; one that holds something, or is none, stays."""
    with suppress(OSError):
        directory.rmdir()
