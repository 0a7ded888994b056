"""What is written whole or not at all: files, folders, and records as JSON, read with a check of version and types."""

import dataclasses
import glob
import json
import logging
import os
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec
import psutil

from hf_efficient.errors import OutputError, writing

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


_LEFT_SECONDS = 3600


@contextmanager
def published(path: Path, *, replaces: bool = True) -> Iterator[Path]:
    """Where to write a file or a folder of the same name, which takes the place of ``path`` unless the block raises;
    without ``replaces`` one that is there by then stays. What a killed process of this machine left there, the next one
    removes after an hour: containers with one host name do not see each other's processes. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ours = f".{path.name}@{socket.gethostname()}@"
    for left in path.parent.glob(f"{glob.escape(ours)}*"):
        is_old = left.is_dir() and time.time() - left.stat().st_mtime > _LEFT_SECONDS
        if is_old and not psutil.pid_exists(int(left.name.split("@")[-2])):
            shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=f"{ours}{os.getpid()}@", dir=path.parent, ignore_cleanup_errors=True) as beside:
        draft = Path(beside, path.name)
        yield draft
        if path.is_dir() and replaces:
            path.replace(Path(beside, f"{path.name}.old"))
        if replaces or not path.exists():
            draft.replace(path)


@contextmanager
def folder_of_its_own(folder: Path) -> Iterator[Path]:
    """An empty folder, gone at the end; also one that a killed process left. Raises ``OutputError``."""
    shutil.rmtree(folder, ignore_errors=True)
    with writing("output_dir", folder):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def check_version(where: object, written: Any, known: int) -> None:
    """Refuse, with ``OutputError``, what a newer version wrote."""
    if isinstance(written, int) and written > known:
        newer = f"schema_version {written} is newer than {known}, which is read here"
        raise OutputError(f"{where}: {newer}: upgrade hf-efficient")


def read_record(path: Path, kind: type[_R], version: int, what: str) -> _R:
    """What a file holds: a dataclass of layout ``version``, which messages call ``what``: ``the account of a run``.
    Raises ``OutputError``: it cannot be read, holds something else, or was written by a newer version."""
    try:
        text = path.read_bytes()
        check_version(path, msgspec.json.decode(text, type=_Versioned).schema_version, version)
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise OutputError(f"{path}: is not {what}: {error}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error


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
