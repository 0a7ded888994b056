"""A run that starts from its first step where another process left its records: those are moved aside."""

import logging
from collections.abc import Iterator
from pathlib import Path

from hf_efficient.run_dir.paths import RUN_JSON, rank_files, records_path

logger = logging.getLogger(__name__)

_PREVIOUS = "previous"
_KINDS = ("spans", "steps", "system")  # spans first: where those of rank 0 are shows the others where theirs belong
_OF_THE_RUN = (RUN_JSON, "report.html", "recipe.resolved.yaml")


def make_room(directory: Path, rank: int, world_size: int) -> None:
    """Move the records of an earlier run in this ``efficiency`` folder aside and say so; raises nothing."""
    try:
        folder = set_aside(directory, rank, world_size)
    except OSError as error:
        words = "The records of an earlier run in %s cannot be moved aside (%s): this run is added to its account."
        logger.warning(words, directory, error)
    else:
        if folder is not None and rank == 0:
            logger.warning("A new run begins in %s; the records of the one before it are in %s", directory, folder)


def set_aside(directory: Path, rank: int, world_size: int) -> Path | None:
    """Move the records in a run's folder to ``previous/N/`` in it, N from 1.

    Each rank moves its own files and waits for no other; rank 0 also moves what is of the whole run, and of ranks that
    there are no more. All of a run go to one folder: rank 0 takes the next number, and the others follow its spans,
    which are the ones that were last written to when theirs were, whether rank 0 has moved them already or not. Returns
    the folder; None where there was nothing to move. Raises ``OSError``; what has been moved stays where it is.
    """
    files = list(_files(directory, rank, world_size))
    if not files:
        return None
    number = _number(directory, rank, files)
    while any((directory / _PREVIOUS / str(number) / path.name).exists() for path in files):
        number += 1
    folder = directory / _PREVIOUS / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        path.rename(folder / path.name)
    return folder


def _files(directory: Path, rank: int, world_size: int) -> Iterator[Path]:
    for kind in _KINDS:
        for owner, path in rank_files(directory, kind).items():
            if owner == rank or (rank == 0 and owner >= world_size):
                yield path
    if rank == 0:
        yield from (path for name in _OF_THE_RUN if (path := directory / name).exists())


def _number(directory: Path, rank: int, files: list[Path]) -> int:
    # In this order, so that spans which rank 0 moves meanwhile are seen in one place or in both.
    in_place = _written_ns(records_path(directory, "spans", 0))
    folders = {int(path.name): path for path in (directory / _PREVIOUS).glob("*") if path.name.isdecimal()}
    of_the_first = {number: _written_ns(records_path(path, "spans", 0)) for number, path in folders.items()}
    following = 1 + max((number for number, at in of_the_first.items() if at is not None), default=0)
    if rank == 0:
        return following
    own = max(path.stat().st_mtime_ns for path in files)
    apart = [(abs(at - own), number) for number, at in of_the_first.items() if at is not None]
    if in_place is not None:
        apart.append((abs(in_place - own), following))
    return min(apart)[1] if apart else following


def _written_ns(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None
