"""A trial: the recipe made short, run in a process of its own, and remembered in a journal."""

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from hf_efficient.errors import OutputError, SetupError, writing
from hf_efficient.facts.environment import thread_count
from hf_efficient.isolate.experiment import run_to_end, why_ended
from hf_efficient.recipe.load import NO_INSTRUMENTS, change_recipe, in_a_folder, without_pauses
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.tuning import TUNING_SCHEMA_VERSION, TrialRun
from hf_efficient.run_dir.reading import parse_line

TRIAL: Final = "trial.json"
JOURNAL: Final = "journal.jsonl"
_WORKER = "hf_efficient.tune.worker"
_MOST_EXAMPLES = 2000  # that a trial tokenises
_WHERE_SET: dict[str, Any] = {"warmup_ratio": None, "lr_scheduler_kwargs": None, "auto_find_batch_size": False}


class Wanted(msgspec.Struct, frozen=True):
    """Of a trial: so many steps and seconds after the warm-up, at least; the loss on ``rows`` rows after ``tokens``,
    or at the end for 0; a plan first; one evaluation and save. It ends after ``most_seconds`` in any case."""

    steps: int
    seconds: float
    most_seconds: float
    warm_up: int = 2
    tokens: int = 0
    rows: int = 16
    plan: bool = False
    pauses: bool = False
    most_bytes: int | None = None


class NoRoom(SetupError):
    """In the process of a trial: it is planned for more memory than there is."""


class TrialFailed(Exception):
    """A trial came to no end; ``str`` says why."""

    def __init__(self, why: str, seconds: float = 0.0) -> None:
        super().__init__(why)
        self.seconds = seconds


class DoesNotFit(TrialFailed):
    """It was planned, and not run."""


def short(recipe: Recipe, folder: Path, wanted: Wanted) -> Recipe:
    """Steps and nothing else, at a constant learning rate; everything is written into the folder, except tokenised
    data, which later trials find beside it."""
    changes = {
        **in_a_folder(recipe, folder / "run"),
        **without_pauses(recipe),
        **NO_INSTRUMENTS,
        **{f"train.{name}": value for name, value in _WHERE_SET.items() if recipe.train.get(name) is not None},
        "train.max_steps": 1_000_000,  # the clock ends it
        "train.lr_scheduler_type": "constant",
        "train.warmup_steps": 0,
        "data.cache_dir": str(folder.parent / "tokenised"),
        "data.max_train_examples": min(recipe.data.max_train_examples or _MOST_EXAMPLES, _MOST_EXAMPLES),
        "efficiency.plan": wanted.plan,
        "efficiency.preflight": False,
        "efficiency.record_steps": True,
    }
    return change_recipe(recipe, changes)


class Trials:
    """Runs changes of one recipe. What a journal holds already is taken from there, in the order in which it came."""

    def __init__(self, argument: str, overrides: Sequence[str], folder: Path, about: Mapping[str, Any]) -> None:
        """``about``: what must be alike to continue a journal. Raises ``OutputError``: the folder holds another
        tuning, or cannot be written."""
        self._argument, self._overrides, self._folder = argument, list(overrides), folder
        self._journal = folder / JOURNAL
        self._held: dict[str, list[dict[str, Any]]] = {}
        self.resumed = 0
        with writing("--folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._read(about)

    def run(self, changes: Mapping[str, Any], wanted: Wanted) -> TrialRun:
        """Train once; ``TrialFailed`` where it does not."""
        name = json.dumps(changes, sort_keys=True)
        waiting = self._held.get(name)
        if waiting:
            return _outcome(waiting.pop(0))
        found = {"changes": dict(changes), **self._measured(changes, wanted)}
        with writing("--folder", self._journal), self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        return _outcome(found)

    def close(self) -> None:
        """Remove what trials needed; the journal stays."""
        shutil.rmtree(self._folder / "tokenised", ignore_errors=True)

    def _measured(self, changes: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
        folder = self._folder / "trial"
        shutil.rmtree(folder, ignore_errors=True)  # of a tuning that was killed
        folder.mkdir()
        flags = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        command = [sys.executable, "-m", _WORKER, self._argument, *self._overrides, f"--folder={folder}"]
        command += [f"--wanted={msgspec.json.encode(wanted).decode()}", f"--changes={json.dumps(flags)}"]
        began, said = time.monotonic(), folder / "said.txt"
        try:
            with said.open("wb") as output:
                code = run_to_end(command, thread_count(), output.fileno())
            held = parse_line((folder / TRIAL).read_bytes()) if (folder / TRIAL).is_file() else None
            held = held or {"failure": why_ended(code, said)}
            return {**held, "wall_seconds": time.monotonic() - began}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _read(self, about: Mapping[str, Any]) -> None:
        head = {"schema_version": TUNING_SCHEMA_VERSION, "about": dict(about)}
        if not self._journal.is_file():
            self._journal.write_text(json.dumps(head) + "\n", encoding="utf-8")
            return
        held = self._journal.read_bytes()
        if not held.endswith(b"\n"):  # a line that was cut off by the end of the process
            self._journal.write_bytes(held[: held.rfind(b"\n") + 1])
        lines = [parse_line(line) for line in held.splitlines()]
        if not lines or lines[0] != json.loads(json.dumps(head)):
            raise OutputError(
                f"--folder: {self._folder} holds the tuning of another recipe, version or machine. Remove it, or write "
                "--folder with a new name."
            )
        for one in lines[1:]:
            if one is not None and "changes" in one:
                self._held.setdefault(json.dumps(one["changes"], sort_keys=True), []).append(one)
                self.resumed += 1


def _outcome(found: Mapping[str, Any]) -> TrialRun:
    if "no_room" in found:
        raise DoesNotFit(str(found["no_room"]), found["wall_seconds"])
    if "run" not in found:
        raise TrialFailed(str(found.get("failure")), found["wall_seconds"])
    return msgspec.convert({**found["run"], "wall_seconds": found["wall_seconds"]}, TrialRun)
