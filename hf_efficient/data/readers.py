"""One generator per kind of file: rows in, each with the place it stands at.

A row is a dict as it is in the file. What cannot be read is a DataError with the file and the line or row.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hf_efficient.data.json_faults import json_fault
from hf_efficient.errors import DataError

__all__ = ["READERS", "Row", "read_csv", "read_json", "read_jsonl", "read_parquet"]

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
