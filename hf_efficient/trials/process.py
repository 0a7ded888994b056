"""A training in a process and a folder of its own: its job, what it left, why it failed; neither outlives the call."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec

from hf_efficient.facts.environment import end_with_parent
from hf_efficient.launch.exits import ended, last_words

WORKER: Final = "hf_efficient.trials.worker"
RESULT: Final = "result.json"
TOKENS: Final = "tokens.jsonl"
"""Beside the rows of bench: their tokens, for a peer that has no chat templates."""
_JOB = "job.json"


class Job(msgspec.Struct, frozen=True):
    """What a worker does with a recipe, named and overridden as the user wrote it; ``options`` of the task."""

    task: Literal["variant", "prepare", "arm", "trial"]
    recipe: str
    overrides: Sequence[str] = ()
    options: dict[str, Any] = {}


Kind = Literal["input", "no_room", "no_time", "fault"]


class RunFailed(Exception):
    """``kind``: what the user can correct, a plan that does not fit, too little time, or anything else. In a worker:
    raised for the two in the middle."""

    def __init__(self, why: str, kind: Kind = "fault", seconds: float = 0.0) -> None:
        super().__init__(why)
        self.kind, self.seconds = kind, seconds


class Progress(Protocol):
    """Hears of each training, and of each decision: what begins, and how it ended."""

    def begins(self, what: str) -> None: ...

    def ends(self, what: str) -> None: ...


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
        was_killed, last = last_words(code, said)
        raise RunFailed("it was killed, perhaps because memory ran out" if was_killed else last)
    return found.get("result")
