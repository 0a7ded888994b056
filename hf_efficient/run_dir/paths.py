"""Where the files of a run are."""

import re
from contextlib import suppress
from pathlib import Path

from hf_efficient.errors import OutputError

RUN_JSON = "run.json"
STARTING = "starting"  # folder inside ``efficiency`` for the records of a start until its model and data are there


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
    has_records = rank_files(directory, "spans") or rank_files(directory, "steps")
    return not has_records and (directory / RUN_JSON).exists()


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
    """When a run last recorded there; None where none did."""
    times = []
    for kind in ("spans", "steps"):
        for path in rank_files(directory, kind).values():
            with suppress(FileNotFoundError):  # a start that is ready moves its files
                times.append(path.stat().st_mtime)
    return max(times, default=None)
