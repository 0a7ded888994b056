"""A library's module variable, other for a while.

What Python's JSON reader cannot take although it may be JSON, in plain words and with the line.

One generator per kind of file: rows in, each with the place it stands at.

A row is a dict as it is in the file. What cannot be read is a DataError with the file and the line or row.

From a source of the recipe to its rows: builtin, local file, local folder, or hub name.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from hf_efficient.data.docstrings import SPLITS, docstring_split
from hf_efficient.errors import DataError
from hf_efficient.facts.libraries import hub_reachable
from hf_efficient.recipe.schema import SourceSection


@contextmanager
def replaced(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """Within, ``module.name`` is ``value``; afterwards as it was.

    Raises:
        AttributeError: the module has no such variable.
    """
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


_STRING = r'"(?:[^"\\]|\\.)*"'
_NUMBERS = re.compile(_STRING + r"|(\d+)", re.DOTALL)
_BRACKETS = re.compile(_STRING + r"|([\[{])|([\]}])", re.DOTALL)


def json_fault(text: str, error: ValueError | RecursionError) -> tuple[int, str]:
    """The 1-based line of the text that the reader stumbled over, and what is wrong there.

    Args:
        text: what was read.
        error: what ``json.loads`` raised for it, other than a ``JSONDecodeError``.
    """
    if isinstance(error, RecursionError):
        depth, position = _deepest(text)
        return _line(text, position), f"lists and objects lie {depth} deep in one another, too deep to be read"
    limit = getattr(sys, "get_int_max_str_digits", lambda: 0)()  # Python 3.10 before its seventh patch has no limit
    for match in _NUMBERS.finditer(text):
        digits = len(match[1] or "")
        if 0 < limit < digits:
            words = f"holds a whole number of {digits} digits, too long to be read. Write it as a string"
            return _line(text, match.start()), words
    return 1, f"not readable as JSON: {error}"


def _deepest(text: str) -> tuple[int, int]:
    depth = most = position = 0
    for match in _BRACKETS.finditer(text):
        depth += bool(match[1]) - bool(match[2])
        if depth > most:
            most, position = depth, match.start()
    return most, position


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Row:
    """One row of a source.

    Attributes:
        where: file and line (``chats.jsonl:12``), or source and 1-based row (``chats.parquet, row 12``).
        value: column name to value.
    """

    where: str
    value: Mapping[str, Any]


def read_jsonl(path: Path) -> Iterator[Row]:
    """One JSON object per line; blank lines are skipped.

    Raises:
        DataError: a line that is not UTF-8, not JSON, or not an object.
    """
    with _open_bytes(path) as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}:{number}"
            text = _decode(raw, where)
            if text.strip():
                yield Row(where, _object(_parse_line(text, where, number), where))


def read_json(path: Path) -> Iterator[Row]:
    """A list of objects, or an object with such a list under ``data``.

    Raises:
        DataError: not UTF-8, not JSON, another layout, or an element that is not an object.
    """
    with _open_bytes(path) as file:
        text = _decode(file.read(), str(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        hint = " If it holds one object per line, name it .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}: not valid JSON (column {error.colno}: {error.msg}).{hint}") from error
    except (ValueError, RecursionError) as error:
        line, words = json_fault(text, error)
        raise DataError(f"{path}:{line}: {words}.") from error
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise DataError(f'{path}: expected a list of objects, or {{"data": [...]}}; found {_kind(value)}.')
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        yield Row(where, _object(row, where))


def read_csv(path: Path) -> Iterator[Row]:
    """Comma-separated values with a header line; every value is a string.

    Raises:
        DataError: no header, a column named twice, a record with more or fewer fields than the header, not
            UTF-8.
    """
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with _open_text(path) as file:
            records = csv.reader(file, strict=True)
            header = next(records, None)
            if header is None:
                return
            _check_header(path, header)
            line = records.line_num + 1
            for record in records:
                if record:
                    yield Row(f"{path}:{line}", _fields(path, line, header, record))
                line = records.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{records.line_num}: not valid CSV: {error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(str(path), error)) from error
    finally:
        csv.field_size_limit(limit)


def read_parquet(path: Path) -> Iterator[Row]:
    """The rows of a Parquet file, in batches, so that the file need not fit into memory as Python objects.

    Raises:
        DataError: not a Parquet file, or a damaged one.
    """
    _open_bytes(path).close()
    try:
        number = 0
        for batch in pq.ParquetFile(path).iter_batches(batch_size=1000):
            for value in batch.to_pylist():
                number += 1
                yield Row(f"{path}, row {number}", value)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as Parquet: {error}") from error


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
"""Suffix of a file to its reader."""


def _open_bytes(path: Path) -> io.BufferedReader:
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    if file.peek(2)[:2] == _GZIP:
        file.close()
        raise DataError(f"{path}: is gzip-compressed. Unpack it (gunzip) and name the unpacked file.")
    return file


def _open_text(path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline="")


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(where, error)) from error


def _not_utf8(where: str, error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    looks_utf16 = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
    guess = " It looks like UTF-16." if looks_utf16 else ""
    return f"{where}: not UTF-8 (byte 0x{byte:02x} at offset {error.start}).{guess} Save the file as UTF-8."


def _parse_line(text: str, where: str, number: int) -> Any:
    try:
        return json.loads(text.rstrip())
    except json.JSONDecodeError as error:
        is_json = number == 1 and text.lstrip().startswith("[")
        hint = " It looks like one JSON list over several lines: name the file .json." if is_json else ""
        excerpt = _excerpt(text, error.pos)
        raise DataError(f"{where}: not valid JSON (column {error.colno}: {error.msg}): {excerpt}.{hint}") from error
    except (ValueError, RecursionError) as error:
        _, words = json_fault(text, error)
        raise DataError(f"{where}: {words}.") from error


def _excerpt(text: str, position: int) -> str:
    """Up to 60 characters around the fault, quoted."""
    start = max(0, min(position, len(text.rstrip())) - 40)
    piece = text[start : start + 60].rstrip()
    return f"`{'…' if start else ''}{piece}{'…' if len(text.rstrip()) > start + 60 else ''}`"


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object ({{...}}), found {_kind(value)}.")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _check_header(path: Path, header: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise DataError(f"{path}:1: the header names a column twice: {', '.join(map(repr, twice))}.")
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and separator in header[0]:
            raise DataError(
                f"{path}:1: the header names one column, {header[0]!r}: it seems to be separated by {name}. Save the "
                "file with commas."
            )


def _fields(path: Path, line: int, header: list[str], record: list[str]) -> dict[str, Any]:
    if len(record) != len(header):
        found, named = _plural(len(record), "field"), _plural(len(header), "column")
        raise DataError(f"{path}:{line}: {found}, but the header names {named}.")
    return dict(zip(header, record, strict=True))


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


BUILTINS: dict[str, Callable[[str], list[dict[str, Any]]]] = {"builtin:python-docstrings": docstring_split}
"""Name of an embedded data set to the function that makes one of its splits."""

LOCAL_WAYS = (
    f"Local ways: a path to a {'/'.join(READERS)} file, a folder of such files, a folder written by "
    "Dataset.save_to_disk, builtin:python-docstrings, or a hub data set that this machine has cached "
    "(HF_HUB_OFFLINE=1)."
)
_OTHER_SUFFIXES = frozenset([".arrow", ".gz", ".tsv", ".txt", ".xlsx", ".yaml", ".yml", ".zip", ".zst"])


@dataclass(frozen=True)
class Source:
    """A source that was found.

    Attributes:
        key: where the recipe names it (``data.train.0``).
        section: as the recipe has it.
        files: what lies on this disk and makes its content; empty for builtins and hub data sets.
        dataset: the loaded data set, for hub data sets and folders of ``save_to_disk``.
    """

    key: str
    section: SourceSection
    files: tuple[Path, ...] = ()
    dataset: datasets.Dataset | None = None

    def rows(self) -> Iterator[Row]:
        """All rows in order.

        Raises:
            DataError: a row that cannot be read, or no row at all.
        """
        rows = self._rows()
        first = next(rows, None)
        if first is None:
            raise DataError(f"{self.key}.path: {self.section.path} is empty: it has no rows.")
        return itertools.chain([first], rows)

    def _rows(self) -> Iterator[Row]:
        name = self.section.path
        if self.dataset is not None:
            return (Row(f"{name}, row {number}", row) for number, row in enumerate(self.dataset, start=1))
        if name in BUILTINS:
            made = BUILTINS[name](self.section.split)
            return (Row(f"{name}, row {number}", row) for number, row in enumerate(made, start=1))
        return itertools.chain.from_iterable(READERS[path.suffix.lower()](path) for path in self.files)


def open_source(section: SourceSection, key: str) -> Source:
    """Find what ``section.path`` names; reads no rows of local files.

    Args:
        section: the source; relative paths are relative to the working directory.
        key: dotted path of the section in the recipe, for messages.

    Raises:
        DataError: nothing is there, or it may not be read; the kind of file is unknown, the split does not exist,
            the hub cannot be reached.
    """
    if section.path.startswith("builtin:"):
        return _builtin(section, key)
    try:
        path = Path(section.path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{key}.path: {section.path}: {error}") from error
    try:
        return _local_or_hub(section, key, path)
    except OSError as error:
        raise DataError(f"{key}.path: {section.path}: cannot be read: {error.strerror or error}.") from error


def _local_or_hub(section: SourceSection, key: str, path: Path) -> Source:
    name = section.path
    if path.is_dir():
        return _folder(section, key, path)
    if path.exists():
        return _file(section, key, path)
    if path.is_symlink():
        raise DataError(f"{key}.path: {name} is a symbolic link to a missing file: {path.readlink()}.")
    if _looks_local(name, path):
        raise DataError(f"{key}.path: no such file: {name}.{_nearest(path)}")
    return Source(key, section, dataset=_from_hub(section, key))


def _builtin(section: SourceSection, key: str) -> Source:
    if section.path not in BUILTINS:
        raise DataError(f"{key}.path: unknown {section.path}; the embedded data sets: {', '.join(BUILTINS)}.")
    if section.split not in SPLITS:
        raise DataError(f"{key}.split: {section.path} has no split {section.split!r}; it has: {', '.join(SPLITS)}.")
    return Source(key, section)


def _file(section: SourceSection, key: str, path: Path) -> Source:
    if path.suffix.lower() not in READERS:
        raise DataError(f"{key}.path: {path}: unknown kind of file; known suffixes: {', '.join(READERS)}.")
    _check_no_split(section, key, "a file")
    return Source(key, section, files=(path,))


def _folder(section: SourceSection, key: str, path: Path) -> Source:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        files = tuple(sorted(entry for entry in path.rglob("*") if entry.is_file()))
        return Source(key, section, files=files, dataset=_saved_dataset(section, key, path))
    files = tuple(sorted(entry for entry in path.iterdir() if entry.suffix.lower() in READERS))
    if not files:
        raise DataError(
            f"{key}.path: the folder {path} holds neither a data set of Dataset.save_to_disk nor a file "
            "that ends "
            f"in {', '.join(READERS)}."
        )
    _check_no_split(section, key, "a folder of files")
    return Source(key, section, files=files)


def _saved_dataset(section: SourceSection, key: str, path: Path) -> datasets.Dataset:
    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{key}.path: {path} is not a readable folder of Dataset.save_to_disk: {error}") from error
    if isinstance(loaded, datasets.Dataset):
        if section.split not in ("train", str(loaded.split)):
            raise DataError(f"{key}.split: {path} holds one data set without a split {section.split!r}; leave it out.")
        return loaded
    if section.split not in loaded:
        raise DataError(f"{key}.split: {path} has no split {section.split!r}; it has: {', '.join(loaded)}.")
    return loaded[section.split]


def _check_no_split(section: SourceSection, key: str, what: str) -> None:
    if section.split != "train":
        raise DataError(
            f"{key}.split: {section.path} is {what} and has no splits; leave `split: {section.split}` "
            "out, or name "
            "the file of that split."
        )


def _looks_local(name: str, path: Path) -> bool:
    """Hub names are ``name`` or ``owner/name``; what cannot be one, or has a file's suffix, is a path."""
    suffix = path.suffix.lower()
    return (
        name.startswith((".", "~", os.sep))
        or suffix in READERS
        or suffix in _OTHER_SUFFIXES
        or len(path.parts) > 2
        or "\\" in name
        or name.endswith("/")
        or (len(path.parts) == 2 and path.parent.is_dir())
    )


def _nearest(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1)
    return f" Nearest in {path.parent}: {near[0]}." if near else ""


def _from_hub(section: SourceSection, key: str) -> datasets.Dataset:
    name = section.path
    # Without a network every request is tried for seconds, again and again, before the local cache is looked into.
    offline = datasets.config.HF_HUB_OFFLINE or not hub_reachable()
    try:
        with replaced(datasets.config, "HF_HUB_OFFLINE", offline):
            return datasets.load_dataset(name, name=section.name, split=section.split)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise DataError(
            f"{key}.path: {name}: no such local path, and no such hub data set ({error}). {LOCAL_WAYS}"
        ) from error
    except (ConnectionError, TimeoutError) as error:
        raise DataError(
            f"{key}.path: {name}: no such local path, and the hub cannot be reached ({error}). {LOCAL_WAYS}"
        ) from error
    except (
        OSError,
        ValueError,
        RuntimeError,
        TypeError,
        KeyError,
        datasets.exceptions.DatasetsError,
    ) as error:
        raise DataError(f"{key}: {name} cannot be loaded from the hub: {error}") from error
