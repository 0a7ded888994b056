"""A record as a JSON file of its own: written whole or not at all, read with a check of its version and its types.

Tables that instruments leave in ``efficiency/profile``: a record as JSON, written whole, read with a check.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hf_efficient.errors import OutputError

_R = TypeVar("_R")


def strict_json(record: Any) -> str:
    """A dataclass as strict JSON, indented, with a newline at its end.

    Raises:
        ValueError: a number is not finite.
    """
    return json.dumps(dataclasses.asdict(record), indent=2, allow_nan=False) + "\n"


def write_whole(path: Path, text: str) -> None:
    """Write a file, or leave the one that was there as it is.

    Raises:
        OSError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_record(path: Path, kind: type[_R], version: int, what: str) -> _R:
    """What a file holds.

    Args:
        path: of the file.
        kind: the dataclass that it holds.
        version: of its layout that is read here.
        what: it is, for messages: ``the account of a run``.

    Raises:
        OutputError: the file cannot be read, holds something else, or was written by a newer version.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    written = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(written, int) and written > version:
        raise OutputError(
            f"{path}: schema_version {written} is newer than {version}, which is read here: upgrade hf-efficient"
        )
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        told = error.errors()[0]
        where = ".".join(map(str, told["loc"]))
        raise OutputError(f"{path}: is not {what}: {where}: {told['msg']}") from error


logger = logging.getLogger(__name__)

PROFILE = "profile"
"""Folder of what instruments wrote, inside ``efficiency``."""

_Table = TypeVar("_Table")


def table_path(directory: Path, name: str, rank: int, part: str = "") -> Path:
    """``directory/operators.rank0.json``, ``directory/memory.rank0.step10.json``.

    Args:
        directory: the ``profile`` folder.
        name: of the table.
        rank: whose it is.
        part: of several of the same name.
    """
    return directory / f"{name}.rank{rank}{f'.{part}' if part else ''}.json"


def tables(directory: Path, files: Collection[str], name: str, kind: type[_Table]) -> list[_Table]:
    """All parts of a table of rank 0 that this run wrote, in the order in which it did.

    Args:
        directory: the ``efficiency`` folder.
        files: what the run's instruments wrote, as paths in it; other files are those of an earlier run.
        name: of the table.
        kind: of its record.
    """
    stem = f"{PROFILE}/{name}.rank0."
    paths = [directory / file for file in files if file.startswith(stem) and file.endswith("json")]
    return [found for found in (read_table(path, kind) for path in paths) if found is not None]


def write_table(path: Path, table: Any) -> None:
    """Write a record; a reader never sees half of it.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, json.dumps(dataclasses.asdict(table), indent=1) + "\n")


def read_table(path: Path, kind: type[_Table]) -> _Table | None:
    """The record in a file; None where there is none, or none of this kind, which is logged."""
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("%s: cannot be read, so that it is left out: %s", path, str(error).splitlines()[0])
        return None
