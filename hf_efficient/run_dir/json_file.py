"""A record as a JSON file of its own: written whole or not at all, read with a check of its version and its types."""

import dataclasses
import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hf_efficient.errors import OutputError
from hf_efficient.run_dir.jsonl import is_huge

logger = logging.getLogger(__name__)

PROFILE = "profile"  # folder of what instruments wrote, inside ``efficiency``

_R = TypeVar("_R")


class _Versioned(msgspec.Struct):
    schema_version: int | None = None


def strict_json(record: Any) -> str:
    """A dataclass as strict JSON, indented, with a newline at its end; ``ValueError``: a number is not finite."""
    return json.dumps(dataclasses.asdict(record), indent=2, allow_nan=False) + "\n"


def write_whole(path: Path, text: str, *, sync: bool = False) -> None:
    """Write a file, or raise ``OSError`` and leave the one that was there; ``sync``: once it is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_record(path: Path, kind: type[_R], version: int, what: str) -> _R:
    """What a file holds: a dataclass of layout ``version``, which messages call ``what``: ``the account of a run``.
    Raises ``OutputError``: it cannot be read, holds something else, or was written by a newer version."""
    try:
        text = b"" if path.is_fifo() else path.read_bytes()  # whoever reads a pipe waits for somebody to write
        written = msgspec.json.decode(text, type=_Versioned).schema_version
        if is_huge(text, msgspec.json.decode(text)):
            raise OutputError(f"{path}: is not {what}: it holds a number that no run has")
        if written is None or written <= version:
            return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise OutputError(f"{path}: is not {what}: {error}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    newer = f"schema_version {written} is newer than {version}, which is read here"
    raise OutputError(f"{path}: {newer}: upgrade hf-efficient")


def table_path(directory: Path, name: str, rank: int, part: str = "") -> Path:
    """``directory/operators.rank0.json``; with ``part``, one of several: ``directory/memory.rank0.step10.json``."""
    return directory / f"{name}.rank{rank}{f'.{part}' if part else ''}.json"


def read_table(path: Path, kind: type[_R]) -> _R | None:
    """The record in a file; None where there is none, or none of this kind, which is logged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("%s: cannot be read, so that it is left out: %s", path, str(error).splitlines()[0])
        return None


def tables(directory: Path, files: Collection[str], name: str, kind: type[_R]) -> list[_R]:
    """All parts of a table of rank 0 that this run wrote, in the order in which it did. ``files`` are what the run's
    instruments wrote, as paths in the ``efficiency`` folder; others are those of an earlier run."""
    stem = f"{PROFILE}/{name}.rank0."
    paths = [directory / file for file in files if file.startswith(stem) and file.endswith("json")]
    return [found for found in (read_table(path, kind) for path in paths) if found is not None]
