"""From a source of the recipe (builtin, local file, local folder, or hub name) to its rows, each with its place.

What cannot be read is a ``DataError`` with the file and the line or row.
"""

import csv
import hashlib
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import ClientError

from hf_efficient.data.docstrings import SPLITS, docstring_pairs, docstring_split
from hf_efficient.data.documents import EXTRACTORS
from hf_efficient.errors import DataError, cause
from hf_efficient.facts.environment import hub_reachable, replaced
from hf_efficient.facts.tables import cache_dir
from hf_efficient.recipe.load import missing_file
from hf_efficient.recipe.schema import SourceSection
from hf_efficient.run_dir.json_file import published
from hf_efficient.text import counted


class Row(NamedTuple):
    """One row of a source; ``where`` is ``chats.jsonl:12`` (a line) or ``chats.parquet, row 12``."""

    where: str
    value: Mapping[str, Any]


class Piece(NamedTuple):
    """Of a JSONL file bytes, of Parquet row groups, another file whole, of a data set rows. ``first``: number of its
    first line or row, from 1; ``size`` in bytes."""

    file: int
    start: int
    end: int
    first: int
    size: int


def _read_jsonl(path: Path, piece: Piece | None = None) -> Iterator[Row]:
    with open_bytes(path) as file:
        if piece is not None:
            file.seek(piece.start)
        for number, raw in enumerate(file, start=1 if piece is None else piece.first):
            if piece is not None and file.tell() > piece.end:
                return
            where = f"{path}:{number}"
            text = _decode(raw, where)
            if text.strip():
                yield Row(where, _object(_parse_line(text, where, number), where))


def _read_json(path: Path) -> Iterator[Row]:
    with open_bytes(path) as file:
        text = _decode(file.read(), str(path))
    if not text.strip():
        return
    try:
        value = _loads(text, str(path))
    except json.JSONDecodeError as error:
        hint = " If it holds one object per line, name it .jsonl." if error.msg == "Extra data" else ""
        raise DataError(f"{path}:{error.lineno}: not valid JSON (column {error.colno}: {error.msg}).{hint}") from error
    rows = value.get("data") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise DataError(f'{path}: expected a list of objects, or {{"data": [...]}}; found {kind_of_value(value)}.')
    for number, row in enumerate(rows, start=1):
        where = f"{path}, row {number}"
        yield Row(where, _object(row, where))


def _read_csv(path: Path) -> Iterator[Row]:
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", newline="") as file:
            records = csv.reader(file, strict=True)
            header = next(records, None)
            if header is None:
                return
            _check_header(path, header)
            line = records.line_num + 1
            for record in records:
                if len(record) not in (0, len(header)):
                    found, named = counted(len(record), "field"), counted(len(header), "column")
                    raise DataError(f"{path}:{line}: {found}, but the header names {named}.")
                if record:
                    yield Row(f"{path}:{line}", dict(zip(header, record, strict=True)))
                line = records.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{records.line_num}: not valid CSV: {error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(str(path), error)) from error
    finally:
        csv.field_size_limit(limit)


def _read_parquet(path: Path, piece: Piece | None = None) -> Iterator[Row]:
    """In batches, so that the file need not fit into memory as Python objects."""
    open_bytes(path).close()
    groups = None if piece is None else range(piece.start, piece.end)
    try:
        batches = pq.ParquetFile(path).iter_batches(batch_size=1000, row_groups=groups)
        values = (value for batch in batches for value in batch.to_pylist())
        for number, value in enumerate(values, start=1 if piece is None else piece.first):
            yield Row(f"{path}, row {number}", value)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as Parquet: {error}") from error


def _read_document(path: Path) -> Iterator[Row]:
    with open_bytes(path) as file:
        extract = EXTRACTORS.get(path.suffix.lower())
        text = _decode(file.read(), str(path)) if extract is None else extract(path)
    if "\0" in text:
        raise DataError(f"{path}: holds zero bytes, so it is no text. Take the file away.")
    yield Row(str(path), {"text": text})


def _cut_jsonl(path: Path, number: int, size: int) -> Iterator[Piece]:
    start, line = 0, 1
    with path.open("rb") as file:
        while block := file.read(size):
            block += file.readline()
            yield Piece(number, start, start + len(block), line, len(block))
            start, line = start + len(block), line + block.count(b"\n")


def _cut_parquet(path: Path, number: int, size: int) -> Iterator[Piece]:
    try:
        facts = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as Parquet: {error}") from error
    start = held = rows = 0
    row = 1
    for group in range(facts.num_row_groups):
        held, rows = held + facts.row_group(group).total_byte_size, rows + facts.row_group(group).num_rows
        if held >= size or group + 1 == facts.num_row_groups:
            yield Piece(number, start, group + 1, row, held)
            start, held, row, rows = group + 1, 0, row + rows, 0


_JSONL, _PARQUET = (_cut_jsonl, _read_jsonl), (_cut_parquet, _read_parquet)
_CUT = {".jsonl": _JSONL, ".ndjson": _JSONL, ".parquet": _PARQUET}
_DOCUMENTS = (".txt", ".md", *EXTRACTORS)
READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    **dict.fromkeys(_DOCUMENTS, _read_document),
}


def open_bytes(path: Path) -> io.BufferedReader:
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}.") from error
    if file.peek(2)[:2] == b"\x1f\x8b":
        file.close()
        raise DataError(f"{path}: is gzip-compressed. Unpack it (gunzip) and name the unpacked file.")
    return file


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(where, error)) from error


def _not_utf8(where: str, error: UnicodeDecodeError) -> str:
    byte = error.object[error.start]
    guess = " It looks like UTF-16." if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    return f"{where}: not UTF-8 (byte 0x{byte:02x} at offset {error.start}).{guess} Save the file as UTF-8."


def _loads(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of thousands of digits
        raise DataError(f"{where}: not readable as JSON: {cause(error)}. Take it away.") from error


def _parse_line(text: str, where: str, number: int) -> Any:
    try:
        return _loads(text.rstrip(), where)
    except json.JSONDecodeError as error:
        is_json = number == 1 and text.lstrip().startswith("[")
        hint = " It looks like one JSON list over several lines: name the file .json." if is_json else ""
        text = text.rstrip()
        start = max(0, min(error.pos, len(text)) - 40)
        excerpt = f"`{'…' if start else ''}{text[start : start + 60].rstrip()}{'…' if len(text) > start + 60 else ''}`"
        raise DataError(f"{where}: not valid JSON (column {error.colno}: {error.msg}): {excerpt}.{hint}") from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object ({{...}}), found {kind_of_value(value)}.")
    return value


_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def kind_of_value(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)


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


BUILTINS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "builtin:python-docstrings": docstring_split,
    "builtin:docstring-pairs": docstring_pairs,
}

_LOCAL_WAYS = (
    f"Local ways: a path to a {'/'.join(READERS)} file, a folder of such files, a folder written by "
    "Dataset.save_to_disk, builtin:python-docstrings, or a hub data set that this machine has cached "
    "(HF_HUB_OFFLINE=1)."
)


@dataclass(frozen=True)
class Source:
    """``key`` is its place in the recipe (``data.train.0``); ``dataset`` is of the hub, or of ``save_to_disk``."""

    key: str
    section: SourceSection
    files: tuple[Path, ...] = ()
    dataset: datasets.Dataset | None = None

    def rows(self) -> Iterator[Row]:
        """All rows in order; ``DataError`` for one that cannot be read, or none at all."""
        rows = self._rows()
        first = next(rows, None)
        if first is None:
            raise DataError(f"{self.key}.path: {self.section.path} is empty: it has no rows.")
        return itertools.chain([first], rows)

    def pieces(self, size: int) -> Iterator[Piece]:
        """All rows in order, in pieces of about ``size`` bytes where the layout can be cut."""
        if self.dataset is not None:
            rows = len(self.dataset)
            step = max(rows * size // max(self.dataset.data.nbytes, 1), 1)
            yield from (Piece(0, start, min(start + step, rows), start + 1, size) for start in range(0, rows, step))
        elif not self.files:
            yield Piece(0, 0, 0, 1, size)
        for number, path in enumerate(self.files if self.dataset is None else ()):
            if (kind := path.suffix.lower()) in _CUT:
                yield from _CUT[kind][0](path, number, size)
            else:
                yield Piece(number, 0, 0, 1, path.stat().st_size)

    def piece(self, piece: Piece) -> Iterator[Row]:
        if self.dataset is not None:
            rows = enumerate(self.dataset.select(range(piece.start, piece.end)), start=piece.first)
            return (Row(f"{self.section.path}, row {number}", value) for number, value in rows)
        if not self.files:
            return self._rows()
        path = self.files[piece.file]
        kind = path.suffix.lower()
        return _CUT[kind][1](path, piece) if kind in _CUT else READERS[kind](path)

    def _rows(self) -> Iterator[Row]:
        name = self.section.path
        if self.dataset is None and name not in BUILTINS:
            return itertools.chain.from_iterable(READERS[path.suffix.lower()](path) for path in self.files)
        values = BUILTINS[name](self.section.split) if self.dataset is None else self.dataset
        return (Row(f"{name}, row {number}", value) for number, value in enumerate(values, start=1))


def open_source(section: SourceSection, key: str) -> Source:
    """Find what ``section.path`` names; reads no rows of local files. Raises ``DataError``: nothing readable is there,
    an unknown kind of file, no such split, no connection to the hub."""
    if section.path.startswith("builtin:"):
        if section.path not in BUILTINS:
            raise DataError(f"{key}.path: unknown {section.path}; the embedded data sets: {', '.join(BUILTINS)}.")
        if section.split not in SPLITS:
            raise DataError(f"{key}.split: {section.path} has no split {section.split!r}; it has: {', '.join(SPLITS)}.")
        return Source(key, section)
    if "://" in section.path:
        return _fetched(section, key)
    try:
        path = Path(section.path).expanduser()
        if path.is_dir():
            return _folder(section, key, path)
        if path.exists():
            return _file(section, key, path)
    except (OSError, RuntimeError) as error:  # the latter of ~ and a user who is not there
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{key}.path: {section.path}: cannot be read: {why}.") from error
    if (fault := missing_file(section.path)) is not None:
        raise DataError(f"{key}.path: {' '.join(filter(None, fault))}")
    return Source(key, section, dataset=_from_hub(section, key))


def _fetched(section: SourceSection, key: str) -> Source:
    """The files of a URL that fsspec knows, or of a pattern such as s3://bucket/*.parquet: fetched into the cache, all
    at the same time, and not again while their size and marks (ETag, time) stay."""
    if Path(urlsplit(section.path).path).suffix.lower() not in READERS:
        raise DataError(f"{key}.path: {section.path}: unknown kind of file; known suffixes: {', '.join(READERS)}.")
    _check_no_split(section, key, "a URL")
    try:
        system, place = fsspec.url_to_fs(section.path)
        places = sorted(system.glob(place)) if "*" in place else [place]
        marks = repr([section.path, *(sorted(system.info(one).items()) for one in places)])
        home = cache_dir() / "sources" / hashlib.sha256(marks.encode()).hexdigest()[:16]
        names = [f"{number}/{one.rpartition('/')[2]}" for number, one in enumerate(places)]
        if not home.is_dir():
            with published(home, replaces=False) as draft:
                for number in range(len(places)):
                    (draft / str(number)).mkdir(parents=True)
                system.get(places, [str(draft / name) for name in names])
    except (OSError, ValueError, ImportError, ClientError) as error:
        raise DataError(f"{key}.path: {section.path}: cannot be fetched: {cause(error)}") from error
    return Source(key, section, files=tuple(home / name for name in names))


def _file(section: SourceSection, key: str, path: Path) -> Source:
    if not path.is_file():
        raise DataError(f"{key}.path: {path} is a pipe or a device. Name a file, which is read more than once.")
    if path.suffix.lower() not in READERS:
        raise DataError(f"{key}.path: {path}: unknown kind of file; known suffixes: {', '.join(READERS)}.")
    _check_no_split(section, key, "a file")
    return Source(key, section, files=(path,))


def _folder(section: SourceSection, key: str, path: Path) -> Source:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        files = tuple(sorted(entry for entry in path.rglob("*") if entry.is_file()))
        return Source(key, section, files=files, dataset=_saved_dataset(section, key, path))
    files = tuple(sorted(entry for entry in path.iterdir() if entry.suffix.lower() in READERS))
    rows = tuple(entry for entry in files if entry.suffix.lower() not in _DOCUMENTS)
    files = rows or files  # beside rows a document describes them
    if not files:
        raise DataError(
            f"{key}.path: the folder {path} holds neither a data set of Dataset.save_to_disk nor a file that ends "
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
            f"{key}.split: {section.path} is {what} and has no splits; leave `split: {section.split}` out, or name "
            "the file of that split."
        )


def _from_hub(section: SourceSection, key: str) -> datasets.Dataset:
    name = section.path
    # Without a network every request is tried for seconds, again and again, before the local cache is looked into.
    offline = datasets.config.HF_HUB_OFFLINE or not hub_reachable()
    where = f"{key}.path: {name}: no such local path, and"
    try:
        with replaced(datasets.config, "HF_HUB_OFFLINE", offline):
            return datasets.load_dataset(name, name=section.name, split=section.split)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise DataError(f"{where} no such hub data set ({error}). {_LOCAL_WAYS}") from error
    except (ConnectionError, TimeoutError) as error:
        raise DataError(f"{where} the hub cannot be reached ({error}). {_LOCAL_WAYS}") from error
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"{key}: {name} cannot be loaded from the hub: {error}") from error
