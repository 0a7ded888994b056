"""What a machine of a job checks before it trains, by files in the run directory: GPUs, version, shared storage."""

import json
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hf_efficient.errors import OutputError, SetupError
from hf_efficient.facts.environment import accelerator_count
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.text import counted

FOLDER = ".hf_efficient_job"  # in the run directory; holds a folder for every job that was ever started for the run

_FIRST = "first_attempt"


@dataclass(frozen=True)
class Machine:
    node_rank: int
    host: str
    version: str


def answer(
    directory: Path, job: str, attempt: str, own: Machine, nodes: int, *, patience: float, look_every: float = 0.5
) -> list[Machine]:
    """Register this machine, and wait for all others."""
    folder = _folder(directory, job)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if own.node_rank == 0 and not (folder / _FIRST).exists():
            write_whole(folder / _FIRST, attempt)
        write_whole(_file(folder, attempt, own.node_rank), json.dumps(asdict(own)))
    except OSError as error:
        raise OutputError(
            f"output_dir: {directory} cannot be written by {own.host} (machine {own.node_rank}): "
            f"{error.strerror or error}. Write an output_dir on storage that every machine may write to."
        ) from error
    seen: dict[int, Machine] = {}
    until = time.monotonic() + patience
    while True:
        missing = [rank for rank in range(nodes) if rank not in seen]
        found = {rank: _read(_file(folder, attempt, rank)) for rank in missing}
        seen |= {rank: machine for rank, machine in found.items() if machine is not None}
        if len(seen) == nodes:
            return [seen[rank] for rank in range(nodes)]
        if time.monotonic() > until:
            break
        time.sleep(look_every)
    named = ", ".join(str(rank) for rank in range(nodes) if rank not in seen)
    raise SetupError(
        f"--nodes {nodes}: {own.host} (machine {own.node_rank}) saw nothing of machine {named} in {directory} "
        f"within {patience:g} s: it was not started, or output_dir is not on storage that all machines share."
    )


def check_gpus(needed: int, host: str) -> None:
    seen = accelerator_count() if needed else 0
    if seen < needed:
        raise SetupError(
            f"--num-gpus: {host} shows torch {counted(seen, 'GPU')}, and the job needs {needed}. Check the driver "
            "there (nvidia-smi), torch's build (a CPU build sees none), and what the job asks the cluster for."
        )


def same_versions(machines: list[Machine]) -> None:
    if len({machine.version for machine in machines}) > 1:
        found = ", ".join(f"{one.host} (machine {one.node_rank}) has {one.version}" for one in machines)
        raise SetupError(f"hf_efficient: {found}. Install the same version on all of them.")


def started_before(directory: Path, job: str, attempt: str, run_file: Path) -> bool:
    """Whether an earlier start of this job has begun to train: its ``run_file`` is younger than the job."""
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


def _read(path: Path) -> Machine | None:
    try:
        return Machine(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # not there yet, or not yet all of it
        return None
