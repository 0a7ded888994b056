"""A record as a JSON file of its own: written whole or not at all, read with a check of its version and its types."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hf_efficient.errors import OutputError

__all__ = ["read_record", "strict_json", "write_whole"]

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
