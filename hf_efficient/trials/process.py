"""A training in a process and a folder of its own: its job, what it left, why it failed; neither outlives the call."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from hf_efficient.errors import SetupError
from hf_efficient.launch.exits import ended

WORKER: Final = "hf_efficient.trials.worker"
RESULT: Final = "result.json"
_JOB = "job.json"
_SAID = 400


class Job(msgspec.Struct, frozen=True):
    """What a worker does with a recipe, named and overridden as the user wrote it; ``options`` of the task."""

    task: Literal["variant", "prepare", "arm", "trial"]
    recipe: str
    overrides: Sequence[str] = ()
    options: dict[str, Any] = {}


class NoRoom(SetupError):
    """In a worker: the training is planned for more memory than there is."""


class NoTime(SetupError):
    """In a worker: the time ended before anything was measured."""


Kind = Literal["input", "no_room", "no_time", "fault"]


class RunFailed(Exception):
    """A training came to no end. ``kind``: what the user can correct, a plan that does not fit, too little time, or
    anything else."""

    def __init__(self, why: str, kind: Kind = "fault", seconds: float = 0.0) -> None:
        super().__init__(why)
        self.kind, self.seconds = kind, seconds


class Progress(Protocol):
    """Hears of each training, and of each decision: what begins, and how it ended."""

    def begins(self, what: str) -> None: ...

    def ends(self, what: str) -> None: ...


@contextmanager
def folder_of_its_own(parent: Path, name: str) -> Iterator[Path]:
    """An empty folder, gone at the end; also one that a killed process left."""
    folder = parent / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def worker_command(job: Job, folder: Path) -> list[str]:
    """Leaves the job in the folder, where the worker reads it."""
    (folder / _JOB).write_bytes(msgspec.json.encode(job))
    return [sys.executable, "-m", WORKER, str(folder)]


def job_in(folder: Path) -> Job:
    return msgspec.json.decode((folder / _JOB).read_bytes(), type=Job)


def run_to_end(command: Sequence[str], folder: Path, threads: int | None, **variables: str) -> Any:
    """What a process left in the folder; None without anything. Raises ``RunFailed``. On the way out, whatever the way,
    none of its processes is left. ``threads``: None: as its machine has it. ``variables``: more of its environment."""
    named = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}  # as accelerate's launcher says it
    environment = {**os.environ, "DO_NOT_TRACK": "1", **named, **variables}  # Axolotl's end waits for its telemetry
    said = folder / "said.txt"
    with said.open("wb") as output:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        own: dict[str, Any] = {"start_new_session": True, "preexec_fn": end_with_parent}
        launcher = subprocess.Popen(command, **streams, **own, env=environment)
        with ended(launcher):
            code = launcher.wait()
    left = folder / RESULT
    found = json.loads(left.read_bytes()) if left.is_file() else {}  # which may hold NaN
    if "failure" in found:
        raise RunFailed(found["failure"], found["kind"])
    if code and not found:
        raise RunFailed(_why_ended(code, said))
    return found.get("result")


def end_with_parent() -> None:
    """No training outlives a tuning that was killed, where the system can see to it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 9)


def _why_ended(code: int, said: Path) -> str:
    """Why a process that left no reason ended, as far as it can be found out."""
    if code in (-9, 137):
        return "it was killed, perhaps because memory ran out"
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if any("SIGKILL" in line or "Signal 9" in line for line in lines):
        return "a process of it was killed, perhaps because memory ran out"
    return f"exit code {code}{': ' + lines[-1].strip()[:_SAID] if lines else ', and it said nothing'}"
