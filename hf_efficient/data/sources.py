"""From a source of the recipe to its rows: builtin, local file, local folder, or hub name."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from hf_efficient.data.docstrings import SPLITS, docstring_split
from hf_efficient.data.readers import READERS, Row
from hf_efficient.data.replaced import replaced
from hf_efficient.errors import DataError
from hf_efficient.hardware.network import hub_reachable
from hf_efficient.recipe.schema import SourceSection

__all__ = ["BUILTINS", "Source", "open_source"]

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
