"""Tables that instruments leave in ``efficiency/profile``: a record as JSON, written whole, read with a check."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hf_efficient.account.json_file import write_whole

__all__ = ["PROFILE", "read_table", "table_path", "tables", "write_table"]

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
