"""Ranks that hang: found by their heartbeats, killed with all others, the stack of each kept.

Without this a process in a collective waits for ``train.ddp_timeout``, half an hour. What comes before the second step,
compilation, evaluations and saves have no bound, unless the process is stopped (SIGSTOP).
"""

import faulthandler
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hf_efficient.launch.started import STATUS_FILE
from hf_efficient.records.steps import COARSE_PHASES, STEP_PHASES
from hf_efficient.run_dir.checkpoints import how_to_resume
from hf_efficient.run_dir.jsonl import last_record
from hf_efficient.run_dir.paths import records_path
from hf_efficient.text import printable, seconds

LEAST_SECONDS = 300.0
SLOWEST_STEPS = 10  # as long as so many of the slowest step, the bound where a recipe gives none

_LOOK_SECONDS = 1.0
_DUMP_SECONDS = 3.0
_FRAMES = 8
_ORDER = [None, *COARSE_PHASES, *(phase for phase in STEP_PHASES if phase not in ("evaluation", "checkpointing"))]
_SIGNAL = signal.SIGRTMIN + 8 if hasattr(signal, "SIGRTMIN") else None


def dump_when_asked(environment: Mapping[str, str]) -> None:
    """Let ``hf-efficient train``, if that started this process, ask for the stack of each of its threads."""
    if _SIGNAL is not None and environment.get(STATUS_FILE):
        path = Path(environment[STATUS_FILE]).with_name(f"rank{environment.get('RANK', '0')}.stack")
        file = path.open("w", encoding="utf-8")
        faulthandler.register(_SIGNAL, file)  # before the process is known: the signal would end it
        print(os.getpid(), file=file, flush=True)


@dataclass
class _Rank:
    number: int
    pid: int
    stack: Path
    beat: dict[str, Any] = field(default_factory=dict)
    silent: float = 0.0  # seconds without a heartbeat
    still: float = 0.0  # seconds in the same step
    began: int = 0  # steps that were seen to begin
    heard: bool = False  # a heartbeat of this process, not of an earlier one

    @property
    def is_bounded(self) -> bool:
        return self.began > 1 and self.beat.get("kind") == "alive" and self.beat.get("open_phase") in _ORDER

    @property
    def status(self) -> str:
        with suppress(psutil.Error):
            return psutil.Process(self.pid).status()
        return "gone"

    def take(self, beat: dict[str, Any], elapsed: float) -> None:
        is_new = beat != self.beat
        self.heard |= is_new and bool(self.beat)
        same_step = beat.get("started_at_seconds") == self.beat.get("started_at_seconds")
        if not same_step and {beat.get("open_phase"), self.beat.get("open_phase", "imports")} <= {*_ORDER}:
            self.began += 1
        self.still = self.still + elapsed if same_step else 0.0
        self.beat = beat
        self.silent = 0.0 if is_new else self.silent + elapsed


class HangWatch:
    """``folder``: where the processes wait for signals (``dump_when_asked``); ``records``: where they write theirs."""

    def __init__(self, folder: Path, records: Path, bound_seconds: float | None = None) -> None:
        self.found = ""  # what was printed
        self._folder, self._records, self._given = folder, records, bound_seconds
        self._ranks: dict[int, _Rank] = {}
        self._slowest = 0.0
        self._ended = threading.Event()

    @property
    def bound_seconds(self) -> float:
        return self._given or max(LEAST_SECONDS, SLOWEST_STEPS * self._slowest)

    def start(self) -> None:
        """In a thread: a disk that does not answer holds up whoever reads from it."""
        if _SIGNAL is not None:
            threading.Thread(target=self._run, name="hangs", daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._ended.wait(_LOOK_SECONDS):
            now = time.monotonic()
            hanging = self.look(min(now - looked, 2 * _LOOK_SECONDS))  # this process itself may have been stopped
            looked = now
            if hanging and not self._ended.is_set():
                self.found = self.stop(hanging)
                print(printable(f"error: {self.found}"), file=sys.stderr, flush=True)

    def look(self, elapsed: float) -> list[_Rank]:
        """The ranks that hang, after so many more seconds."""
        ranks = self._living()
        for one in ranks:
            before, began = one.still, one.began
            one.take(last_record(records_path(self._records, "spans", one.number)) or {}, elapsed)
            if began > 1 and one.began > began:
                self._slowest = max(self._slowest, before + elapsed)
            if not one.is_bounded and one.status != psutil.STATUS_STOPPED:
                one.silent = 0.0
        if not all(one.is_bounded for one in ranks):
            for one in ranks:
                one.still = 0.0
        silent = [one for one in ranks if one.silent > self.bound_seconds]
        if silent or not any(one.still > self.bound_seconds for one in ranks):
            return silent
        first = min(map(self._place, ranks))
        return [one for one in ranks if self._place(one) == first]

    def _living(self) -> list[_Rank]:
        for path in self._folder.glob("rank*.stack"):
            number, pid = int(path.stem.removeprefix("rank")), path.read_text(encoding="utf-8").partition("\n")[0]
            if pid and (number not in self._ranks or self._ranks[number].pid != int(pid)):
                self._ranks[number] = _Rank(number, int(pid), path)
        return [one for _, one in sorted(self._ranks.items()) if one.status not in ("gone", psutil.STATUS_ZOMBIE)]

    def _place(self, rank: _Rank) -> tuple[int, int]:
        phase = rank.beat.get("open_phase")
        return last_step(self._records, rank.number), _ORDER.index(phase) if phase in _ORDER else 0

    def stop(self, hanging: Sequence[_Rank]) -> str:
        """Dump the stacks of all ranks and kill them; in words."""
        ranks = self._living()
        words, step = self._words(hanging, ranks), 1 + max(last_step(self._records, one.number) for one in ranks)
        sizes = {one.pid: one.stack.stat().st_size for one in ranks}
        for one in ranks:
            for number in (signal.SIGCONT, _SIGNAL):  # of a stopped process any thread would take the second
                with suppress(ProcessLookupError):
                    os.kill(one.pid, number or 0)
        until = time.monotonic() + _DUMP_SECONDS
        while any(one.stack.stat().st_size == sizes[one.pid] for one in ranks) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.2)  # a dump is written line by line
        stacks = {one.number: one.stack.read_text(encoding="utf-8", errors="replace") for one in ranks}
        for one in ranks:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        shown = "\n".join(main_frames(stacks[hanging[0].number])) or "  (it gave none: it hangs inside the system)"
        return f"{words}\n{shown}\n{self._kept(stacks, step)}"

    def place(self, rank: int) -> str:
        """Where it was when it was last heard of; empty where nothing is known."""
        seen = self._ranks.get(rank)
        return place_of(self._records, rank) if seen is not None and seen.heard else ""

    def _words(self, hanging: Sequence[_Rank], ranks: Sequence[_Rank]) -> str:
        first = hanging[0]
        where = {one.number: place_of(self._records, one.number) for one in ranks}
        why = f"no heartbeat for {seconds(first.silent)}" if first.silent else f"no step for {seconds(first.still)}"
        why += " (it was stopped, SIGSTOP)" if first.status == psutil.STATUS_STOPPED else ""
        name = f"rank {first.number} hangs{', last heard of' if first.silent else ''}"
        if len(hanging) == len(ranks) > 1:
            name = "all ranks hang, and each may wait for another: rank 0"
        rest = [f"rank {number}{place}" for number, place in sorted(where.items()) if number != first.number]
        others = f" The others: {'; '.join(rest)}." if rest else ""
        return f"{name}{where[first.number]}: {why}.{others} All are killed. The stack, innermost call first:"

    def _kept(self, stacks: Mapping[int, str], step: int) -> str:
        folder = self._records / "faults"
        remedy = f"{how_to_resume(self._records.parent)} A step that takes so long: a larger faults.hang_minutes."
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for number, text in stacks.items():
                path = folder / f"hang.step{step}.rank{number}.txt"
                path.write_text(text.partition("\n")[2], encoding="utf-8")
        except OSError as error:
            return f"The stacks cannot be kept ({error.strerror}). {remedy}"
        return f"The stacks of all threads and ranks are in {shlex.quote(str(folder))}. {remedy}"


def last_step(records: Path, rank: int) -> int:
    return int((last_record(records_path(records, "steps", rank), "step") or {"step": 0})["step"])


def place_of(records: Path, rank: int) -> str:
    """`` in backward of step 8``, as the records of a rank say; empty where they do not."""
    beat = last_record(records_path(records, "spans", rank)) or {}
    phase = beat.get("open_phase")
    if beat.get("kind") != "alive":
        return ""
    step = f"step {last_step(records, rank) + 1}" if phase in _ORDER else ""
    return f" in {' of '.join(filter(None, (phase, step)))}"


def main_frames(stack: str) -> list[str]:
    """The innermost calls of the main thread, which faulthandler writes last."""
    frames = re.split(r"^(?:Current thread|Thread) 0x.*\n", stack, flags=re.MULTILINE)[-1].splitlines()
    return [line for line in frames if line.startswith("  File ")][:_FRAMES]
