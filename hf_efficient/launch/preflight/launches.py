"""One of the two launches of a proof, watched until it ends, fails or hangs."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from hf_efficient.launch.family import ended
from hf_efficient.launch.preflight.liveness import Liveness
from hf_efficient.launch.preflight.notes import STAGES, Part, RankNotes, notes_of
from hf_efficient.records.preflight import PreflightFailure
from hf_efficient.units import seconds

__all__ = ["ProofLaunch", "failure_of", "launch_part", "log_of"]

_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 3.0
"""For other ranks to say why they fail: the first one to see a lost connection is not the one that lost it."""
_ORDER = list(STAGES)
_SAID = 400
_LOST = re.compile(r"connection (was )?(reset|closed|refused|lost)|broken pipe|closed by peer|remote process", re.I)
"""What gloo and NCCL say in a process whose neighbour is gone."""


@dataclass(frozen=True)
class ProofLaunch:
    """How the launches of a proof are started.

    Attributes:
        command: of the run; the part of the proof is appended to it.
        environment: of the run, beside this process's own.
        debug: let them write to the terminal.
        on_stage: is told each stage of the process that is behind.
    """

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    debug: bool = False
    on_stage: Callable[[str], None] = lambda stage: None


def launch_part(
    launch: ProofLaunch, folder: Path, part: Part, limit_seconds: float
) -> tuple[list[RankNotes], PreflightFailure | None]:
    """Run it; none of its processes is left afterwards.

    Args:
        launch: how.
        folder: of the proof, where its processes leave their notes.
        part: to be run.
        limit_seconds: in which nothing goes on: then it hangs.

    Returns:
        The notes of all ranks, and why it failed; None where it did not.
    """
    with log_of(folder, part).open("wb") as log:
        output = None if launch.debug else log.fileno()
        launcher = subprocess.Popen(
            [*launch.command, f"--preflight={part}"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **launch.environment},
            start_new_session=True,
        )
        with ended(launcher):
            hung_for = _wait(launcher, folder, part, limit_seconds, launch.on_stage)
            code = launcher.poll()
    notes = notes_of(folder, part)
    return notes, failure_of(notes, code, hung_for, log_of(folder, part))


def log_of(folder: Path, part: Part) -> Path:
    """What its processes wrote."""
    return folder / f"{part}.log"


def _wait(
    launcher: subprocess.Popen[bytes], folder: Path, part: Part, limit_seconds: float, on_stage: Callable[[str], None]
) -> float | None:
    """Until it ends, a process of it fails, or nothing goes on; the seconds of the last, else None."""
    liveness, failed_at, told = Liveness(launcher.pid), math.inf, ""
    while launcher.poll() is None:
        time.sleep(_LOOK_SECONDS)
        notes = notes_of(folder, part)
        if any(one.kind for one in notes):
            failed_at = min(failed_at, time.monotonic())
            if time.monotonic() - failed_at > _GRACE_SECONDS:
                return None
        if notes and (stage := STAGES[_behind(notes).stage]) != told:
            told = stage
            on_stage(stage)
        still = liveness.still_for(notes)
        if still > limit_seconds:
            return still
    return None


def _behind(notes: Sequence[RankNotes]) -> RankNotes:
    return min(notes, key=lambda one: _ORDER.index(one.stage))


def failure_of(
    notes: Sequence[RankNotes], code: int | None, hung_for: float | None, log: Path
) -> PreflightFailure | None:
    """Why a launch failed; None where all of its processes came to their end.

    Args:
        notes: of its processes.
        code: its exit code; None where it had to be ended.
        hung_for: seconds in which nothing happened, where that is why it was ended.
        log: what it wrote.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    was_killed = code in (-9, 137) or any("SIGKILL" in line or "Signal 9" in line for line in lines)
    failed = [one for one in notes if one.kind]
    if was_killed and all(one.kind == "fault" and _LOST.search(one.message or "") for one in failed):
        notes = [one for one in notes if not one.kind] or notes  # the others miss the one that was killed
    elif failed:
        first = min(failed, key=lambda one: ({"memory": 0, "fault": 2}.get(str(one.kind), 1), one.rank))
        assert first.kind
        return PreflightFailure(first.kind, STAGES[first.stage], first.message or "it said nothing", first.rank)
    behind = _behind(notes) if notes else None
    stage = STAGES[behind.stage] if behind else STAGES["starting"]
    rank = behind.rank if behind else None
    if hung_for is not None:
        rank = rank if len({one.stage for one in notes}) > 1 else None  # else each may wait for any other
        return PreflightFailure("hang", stage, _hung(stage, rank, hung_for), rank)
    if code == 0 and notes and all(one.stage == "done" for one in notes):
        return None
    if was_killed:
        return PreflightFailure(
            "killed",
            stage,
            f"a process was killed in {stage}, for want of host memory perhaps: the run would have been too. Give the "
            "machine more memory, write a smaller train.per_device_train_batch_size or fewer distributed.processes.",
            rank,
        )
    last = _last_words(lines)
    said = f": {last[:_SAID]}" if last else ", and it said nothing"
    return PreflightFailure("fault", stage, f"a process ended in {stage} with exit code {code}{said}", rank)


def _last_words(lines: Sequence[str]) -> str:
    """Of the processes, not of the launcher, which ends with a table between two rules."""
    theirs = list(takewhile(lambda line: "torch/distributed/elastic" not in line, lines))
    return next((line.strip() for line in reversed(theirs or lines) if line.strip("=- ")), "")


def _hung(stage: str, rank: int | None, hung_for: float) -> str:
    who = "" if rank is None else f" (rank {rank} is behind)"
    return (
        f"nothing has happened for {seconds(hung_for)} in {stage}{who}: it hangs, and so would the run. Processes wait "
        "for each other, perhaps over a network or a disk that does not answer; NCCL_DEBUG=INFO tells of the first. "
        "Where it is only slow, write a larger efficiency.preflight_minutes."
    )
