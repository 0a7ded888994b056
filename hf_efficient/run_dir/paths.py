"""Where the files of a run are, and where those of an earlier run in its folder go."""

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hf_efficient.errors import OutputError

logger = logging.getLogger(__name__)

RUN_JSON = "run.json"
RESOLVED = "recipe.resolved.yaml"  # the recipe as it ran; written when training starts, the mark of a run of ours
STARTING = "starting"  # folder inside ``efficiency`` for the records of a start until its model and data are there
_PREVIOUS = "previous"
_KINDS = ("spans", "steps", "system")
_OF_THE_RUN = (RUN_JSON, "report.html", RESOLVED)


def records_path(directory: Path, kind: str, rank: int) -> Path:
    """``steps.jsonl`` or ``spans.jsonl``; ``steps.rankN.jsonl`` of rank N > 0."""
    return directory / (f"{kind}.jsonl" if rank == 0 else f"{kind}.rank{rank}.jsonl")


def rank_files(directory: Path, kind: str) -> dict[int, Path]:
    """The files of this kind by rank, in the order of the ranks."""
    found = {}
    for path in directory.glob(f"{kind}*.jsonl"):
        match = re.fullmatch(rf"{kind}(?:\.rank(\d+))?\.jsonl", path.name)
        if match:
            found[int(match[1] or 0)] = path
    return dict(sorted(found.items()))


def has_only_account(directory: Path) -> bool:
    """Whether somebody has removed the records of a run and kept its ``run.json``."""
    return not (rank_files(directory, "spans") or rank_files(directory, "steps")) and (directory / RUN_JSON).exists()


def records_folder(run_dir: str | Path, *, latest: bool = False) -> Path:
    """The folder of a run's records: ``RUN_DIR/efficiency``, or ``RUN_DIR`` itself where it has none; that of a start,
    on its way or killed, where there is nothing else. With ``latest`` also the start of a run that is to replace
    another one, where that start wrote last. Raises ``OutputError``: there is no such folder."""
    directory = Path(run_dir).expanduser()
    if (directory / "efficiency").is_dir():
        directory = directory / "efficiency"
    if not directory.is_dir():
        raise OutputError(f"{run_dir}: no such folder; name the OUTPUT_DIR of a run")
    start = _written_at(directory / STARTING)
    if start is None:
        return directory
    own = _written_at(directory)
    is_start = (own is None and not (directory / RUN_JSON).exists()) or (latest and own is not None and start > own)
    return directory / STARTING if is_start else directory


def _written_at(directory: Path) -> float | None:
    times = []
    for kind in ("spans", "steps"):
        for path in rank_files(directory, kind).values():
            with suppress(FileNotFoundError):  # a start that is ready moves its files
                times.append(path.stat().st_mtime)
    return max(times, default=None)


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
    there are no more. All of a run go to one folder: the last one, or a new one where that holds theirs of an earlier
    run. Returns the folder; None where there was nothing to move. Raises ``OSError``; what has been moved stays where
    it is.
    """
    files = list(_files(directory, rank, world_size))
    if not files:
        return None
    number = max((int(one.name) for one in (directory / _PREVIOUS).glob("*") if one.name.isdecimal()), default=1)
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
