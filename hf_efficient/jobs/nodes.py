"""What a machine checks before it trains: that it and the others write to, and read from, the same storage.

Every machine leaves a file in the run directory and waits for those of all others. So the storage is proven to be
shared, nobody trains alone, and the versions can be compared, without a network connection that may not work.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hf_efficient.errors import OutputError, SetupError

FOLDER = ".hf_efficient_job"
"""Folder in the run directory; holds a folder for every job that was ever started for the run."""

_FIRST = "first_attempt"


@dataclass(frozen=True)
class Machine:
    """One machine of a job.

    Attributes:
        node_rank: 0 for the first.
        host: its name.
        version: of hf_efficient.
    """

    node_rank: int
    host: str
    version: str


def answer(
    directory: Path, job: str, attempt: str, own: Machine, nodes: int, *, patience: float, look_every: float = 0.5
) -> list[Machine]:
    """Say that this machine is here, and wait for all others.

    Args:
        directory: the run directory.
        job: what the cluster calls the job, the same at every start of it.
        attempt: what tells one start of the job from another.
        own: this machine.
        nodes: machines of the job.
        patience: seconds to wait for the others.
        look_every: seconds between two looks.

    Returns:
        All of them, by their rank.

    Raises:
        OutputError: this machine cannot write there.
        SetupError: another one did not come.
    """
    folder = _folder(directory, job)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if own.node_rank == 0 and not (folder / _FIRST).exists():
            _write(folder / _FIRST, attempt)
        _write(_file(folder, attempt, own.node_rank), json.dumps(asdict(own)))
    except OSError as error:
        raise OutputError(
            f"output_dir: {directory} cannot be written by {own.host} (machine {own.node_rank}): "
            f"{error.strerror or error}. It must lie on storage that every machine may write to."
        ) from error
    seen: dict[int, Machine] = {}
    until = time.monotonic() + patience

    def all_here() -> bool:
        for rank in range(nodes):
            if rank not in seen and (machine := _read(_file(folder, attempt, rank))) is not None:
                seen[rank] = machine
        return len(seen) == nodes

    if not _wait(all_here, until, look_every):
        missing = ", ".join(str(rank) for rank in range(nodes) if rank not in seen)
        raise SetupError(
            f"--nodes {nodes}: {own.host} (machine {own.node_rank}) saw nothing of machine {missing} in {directory} "
            f"within {patience:g} s: it was not started, or output_dir is not on storage that all machines share."
        )
    return [seen[rank] for rank in range(nodes)]


def same_versions(machines: list[Machine]) -> None:
    """All machines run the same hf_efficient.

    Raises:
        SetupError: they do not.
    """
    if len({machine.version for machine in machines}) > 1:
        told = ", ".join(f"{one.host} (machine {one.node_rank}) has {one.version}" for one in machines)
        raise SetupError(f"hf_efficient: {told}. Install the same version on all of them.")


def started_before(directory: Path, job: str, attempt: str, run_file: Path) -> bool:
    """Whether an earlier start of this job came to train, so that this one goes on from there.

    Args:
        directory: the run directory.
        job: as given to ``answer``, which came before.
        attempt: as given to ``answer``.
        run_file: what a run writes when its training starts; one that is older than the job is another run's, which
            the job's first start was to replace and did not come to.
    """
    first = _folder(directory, job) / _FIRST
    if first.read_text(encoding="utf-8") == attempt:
        return False
    return not run_file.exists() or run_file.stat().st_mtime >= first.stat().st_mtime


def _folder(directory: Path, job: str) -> Path:
    return directory / FOLDER / _plain(job)


def _file(folder: Path, attempt: str, rank: int) -> Path:
    return folder / f"{_plain(attempt)}.{rank}.json"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text)


def _write(path: Path, text: str) -> None:
    """In one step, so that nobody reads half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _read(path: Path) -> Machine | None:
    try:
        return Machine(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not there yet, or not yet all of it
        return None


def _wait(arrived: Callable[[], bool], until: float, look_every: float) -> bool:
    while not arrived():
        if time.monotonic() > until:
            return False
        time.sleep(look_every)
    return True
