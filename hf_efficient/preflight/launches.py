"""The preflight check: a short launch that trains on the longest batch, evaluates and saves, and one that resumes."""

import math
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import TypeAdapter, ValidationError

from hf_efficient.errors import HfEfficientError, PreflightError
from hf_efficient.estimate.cost import checkpoints_at_once
from hf_efficient.facts.tables import key_table
from hf_efficient.launch.exits import MAY_BE_LOST, ended, ends_on_signals, last_words
from hf_efficient.launch.preflight_wanted import preflight_path, write_preflight
from hf_efficient.recipe.load import NO_INSTRUMENTS, change_recipe, in_a_folder, without_pauses
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.account import FailureKind, Preflight, PreflightFailure
from hf_efficient.reporting.run_rows import preflight_words
from hf_efficient.run_dir.json_file import folder_of_its_own
from hf_efficient.text import counted, seconds, size

STEPS = 2  # before the save, and the next, which the optimizer's state makes larger and a resumed run must repeat
MOST_MICRO_BATCHES = 2  # of a step: the second finds the gradients of the first, and is as large as any that follows
# Relative: kernels of a GPU may add in another order; random numbers or weights that were lost change it by more.
LOSS_TOLERANCE = 1e-3

Part = Literal["save", "load"]  # which of the two launches
Stage = Literal["starting", "data", "building", "training", "evaluation", "saving", "loading", "next", "final", "done"]

STAGES: dict[Stage, str] = key_table("report_words")["preflight_stages"]

_SHORT: dict[str, Any] = {
    "train.max_steps": STEPS,
    "train.logging_strategy": "no",
    "train.train_sampling_strategy": "sequential",
    # A step of learning rate 0, where a warm-up begins, would change nothing that could be compared.
    "train.lr_scheduler_type": "constant",
    "train.warmup_steps": 0,
    **dict.fromkeys(("efficiency.record_steps", "efficiency.log_metrics"), False),
    **NO_INSTRUMENTS,
}
_WHERE_SET: dict[str, Any] = {"logging_first_step": False, "lr_scheduler_kwargs": None, "warmup_ratio": None}
_MOST = ("training_peak_bytes", "evaluation_peak_bytes", "save_seconds", "load_seconds", "batch_rows", "batch_tokens")
_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 3.0  # for other ranks to say why they fail: the first to see a lost connection did not lose it
_LEAST_BYTES = 1 << 20  # read or written in a second; less is a log


def preflight_folder(recipe: Recipe) -> Path:
    """In the output directory, hence on the disk of the run; it is removed afterwards."""
    return Path(recipe.output_dir).expanduser() / ".preflight"


def preflight_recipe(recipe: Recipe, micro_batches: int) -> Recipe:
    """The run's own recipe, two steps long, in a folder of its own, without logs, records and instruments."""
    where_set = {name: value for name, value in _WHERE_SET.items() if recipe.train.get(name) is not None}
    changes = {**without_pauses(recipe), **{f"train.{name}": value for name, value in where_set.items()}, **_SHORT}
    changes |= in_a_folder(recipe, preflight_folder(recipe) / "run")
    changes["train.gradient_accumulation_steps"] = min(micro_batches, MOST_MICRO_BATCHES)
    return change_recipe(recipe, changes)


@dataclass
class RankNotes:
    """What a process leaves in a small file, written anew at every stage: fields of ``records.Preflight`` and some for
    the disk, digests of weights and optimizer by name after save or load, losses of all micro-batches."""

    rank: int
    world_size: int = 1
    stage: Stage = "starting"
    kind: FailureKind | None = None
    message: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    optimizer: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def notes_of(folder: Path, part: Part) -> list[RankNotes]:
    found = []
    for path in folder.glob(f"{part}-*.json"):
        with suppress(OSError, ValidationError):  # of a process that is just ending, perhaps
            found.append(TypeAdapter(RankNotes).validate_json(path.read_bytes()))
    return sorted(found, key=lambda notes: notes.rank)


@dataclass(frozen=True)
class PreflightLaunch:
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    debug: bool = False  # let them write to the terminal
    on_stage: Callable[[str], None] = lambda stage: None


def check_run(recipe: Recipe, launch: PreflightLaunch, show: Callable[[str, str], None]) -> None:
    """Check a run, show what was found by ``show(title, text)``, and keep it in the output directory. Raises
    ``PreflightError``: the run would fail; ``HfEfficientError``: what the run itself would refuse."""
    show("Preflight", "the longest batch, a save and a load back, each in a launch of its own")
    found = preflight(recipe, launch)
    for line in preflight_words(found):
        show("", line)
    if found.failure is not None:
        why = found.failure.message
        raise HfEfficientError(why) if found.failure.kind == "input" else PreflightError(f"preflight: {why}")


def preflight(recipe: Recipe, launch: PreflightLaunch) -> Preflight:
    began = time.monotonic()
    with ends_on_signals(), folder_of_its_own(preflight_folder(recipe)):
        figures, failure = _checked(recipe, launch)
        if failure is not None and failure.kind not in ("disk", "differs", "input") and not launch.debug:
            failure = replace(failure, message=f"{failure.message} {_kept_log(recipe)}")
    name, took = figures.pop("fingerprint", ""), time.monotonic() - began
    found = Preflight(fingerprint=name, passed=failure is None, wall_seconds=took, failure=failure, **figures)
    write_preflight(recipe, found)
    return found


def _checked(recipe: Recipe, launch: PreflightLaunch) -> tuple[dict[str, Any], PreflightFailure | None]:
    folder, limit = preflight_folder(recipe), 60 * recipe.efficiency.preflight_minutes
    saved, failure = launch_part(launch, folder, "save", limit)
    figures = figures_of(saved)
    failure = failure or disk_failure(figures)
    if failure is not None or recipe.train.get("save_only_model"):
        return figures, failure
    loaded, failure = launch_part(launch, folder, "load", limit)
    return figures_of(saved, loaded), failure or differing(saved, loaded)


def log_of(folder: Path, part: Part) -> Path:
    return folder / f"{part}.log"


def _kept_log(recipe: Recipe) -> str:
    """Keep what the launches wrote, beside ``preflight.json``; where, in words."""
    written = [path for part in ("save", "load") if (path := log_of(preflight_folder(recipe), part)).is_file()]
    kept = preflight_path(recipe).with_suffix(".log")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(b"".join(path.read_bytes() for path in written))
    except OSError as error:
        return f"Its log could not be kept: {error.strerror or error}."
    return f"All that it wrote is in {kept}."


def launch_part(
    launch: PreflightLaunch, folder: Path, part: Part, limit_seconds: float
) -> tuple[list[RankNotes], PreflightFailure | None]:
    """The notes of all ranks, and why it failed; none of its processes is left. Still for the limit: it hangs."""
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


def _wait(
    launcher: subprocess.Popen[bytes], folder: Path, part: Part, limit_seconds: float, on_stage: Callable[[str], None]
) -> float | None:
    """Until it ends, a process of it fails, or it hangs: the seconds. A long download or reading of data is no hang."""
    failed_at, shown = math.inf, ""
    since = looked = time.monotonic()
    stages: list[Stage] = []
    held = 0
    while launcher.poll() is None:
        time.sleep(_LOOK_SECONDS)
        notes, now = notes_of(folder, part), time.monotonic()
        if any(one.kind for one in notes):
            failed_at = min(failed_at, now)
            if now - failed_at > _GRACE_SECONDS:
                return None
        if notes and (stage := STAGES[_behind(notes).stage]) != shown:
            shown = stage
            on_stage(stage)
        if (seen := [one.stage for one in notes]) != stages or "data" in seen:
            stages, since = seen, now
        elif now - looked > 1.0:
            looked, moved = now, _bytes_moved(launcher.pid)
            if abs(moved - held) >= _LEAST_BYTES:
                held, since = moved, now
        if now - since > limit_seconds:
            return now - since
    return None


def _bytes_moved(launcher: int) -> int:
    total = 0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(launcher)
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error, AttributeError):  # it has ended; macOS does not say
                moved = one.io_counters()
                total += moved.read_chars + moved.write_chars
    return total


def _behind(notes: Sequence[RankNotes]) -> RankNotes:
    order = list(STAGES)
    return min(notes, key=lambda one: order.index(one.stage))


def failure_of(
    notes: Sequence[RankNotes], code: int | None, hung_for: float | None, log: Path
) -> PreflightFailure | None:
    """Why a launch failed, of which ``code`` is None where it had to be ended; None where all came to their end."""
    was_killed, last = last_words(code, log)
    failed = [one for one in notes if one.kind]
    if was_killed and all(one.kind == "fault" and MAY_BE_LOST.search(one.message or "") for one in failed):
        notes = [one for one in notes if not one.kind] or notes  # the others miss the one that was killed
    elif failed:
        first = min(failed, key=lambda one: ({"memory": 0, "fault": 2}.get(str(one.kind), 1), one.rank))
        assert first.kind
        return PreflightFailure(first.kind, STAGES[first.stage], first.message or "it said nothing", first.rank)
    behind = _behind(notes) if notes else None
    stage, rank = (STAGES[behind.stage], behind.rank) if behind else (STAGES["starting"], None)
    if hung_for is not None:
        rank = rank if len({one.stage for one in notes}) > 1 else None  # else each may wait for any other
        who = "" if rank is None else f" (rank {rank} is behind)"
        message = (
            f"nothing has happened for {seconds(hung_for)} in {stage}{who}: it hangs, and so would the run. Processes "
            "wait for each other, perhaps over a network or a disk that does not answer; NCCL_DEBUG=INFO shows the "
            "first. Where it is only slow, write a larger efficiency.preflight_minutes."
        )
        return PreflightFailure("hang", stage, message, rank)
    if code == 0 and notes and all(one.stage == "done" for one in notes):
        return None
    if was_killed:
        message = (
            f"a process was killed in {stage}, perhaps because host memory ran out: the run would be killed too. "
            "Give the machine more memory, or write a smaller train.per_device_train_batch_size or fewer "
            "distributed.processes."
        )
        return PreflightFailure("killed", stage, message, rank)
    return PreflightFailure("fault", stage, f"a process ended in {stage} with {last}", rank)


def figures_of(saved: Sequence[RankNotes], loaded: Sequence[RankNotes] = ()) -> dict[str, Any]:
    """What ``Preflight`` holds, by its names there, as far as the notes of the two launches hold it."""
    known: dict[str, Any] = {"world_size": saved[0].world_size} if saved else {}
    for notes in [*loaded, *saved][::-1]:
        for name, value in notes.figures.items():
            known[name] = max(known[name], value) if name in _MOST and name in known else known.get(name, value)
    if "saves" in known:
        keeps_best, there = known["keeps_best"], known["checkpoints_there"]
        count = checkpoints_at_once(known["saves"], known["save_total_limit"], keeps_best=keeps_best, there=there)
        known["checkpoints_to_come"] = count
        if "checkpoint_bytes" in known:
            known["needed_bytes"] = count * known["checkpoint_bytes"] + known["model_bytes"] + known["merged_bytes"]
    known["next_loss"] = _next_loss(saved, known.get("micro_batches"), steps=2)
    if loaded:
        known["next_loss_after_load"] = _next_loss(loaded, known.get("micro_batches"), steps=1)
        known["compared_tensors"] = sum(len(one.weights) + len(one.optimizer) for one in saved)
    names = {one.name for one in fields(Preflight)}
    return {name: value for name, value in known.items() if name in names}


def _next_loss(notes: Sequence[RankNotes], micro_batches: int | None, *, steps: int) -> float | None:
    """Mean over the ranks of the last step's loss: the Trainer scales those of its micro-batches to be added."""
    if not micro_batches or not notes or any(len(one.losses) != steps * micro_batches for one in notes):
        return None
    loss = math.fsum(math.fsum(one.losses[-micro_batches:]) for one in notes) / len(notes)
    return loss if math.isfinite(loss) else None


def disk_failure(figures: Mapping[str, Any], keys: str = "train.") -> PreflightFailure | None:
    """Whether all checkpoints to come have room, by the figures of ``figures_of``; ``keys``: before those to change."""
    needed, free = figures.get("needed_bytes"), figures.get("free_bytes")
    if needed is None or free is None or needed <= free:
        return None
    message = (
        f"the disk is too small: {counted(figures['checkpoints_to_come'], 'checkpoint')} of "
        f"{size(figures['checkpoint_bytes'])} and the model in the end need {size(needed)}, and {size(free)} are free. "
        f"Write {keys}save_total_limit=1, a larger {keys}save_steps, or an output_dir=... on another disk."
    )
    return PreflightFailure("disk", "the disk", message)


def differing(saved: Sequence[RankNotes], loaded: Sequence[RankNotes]) -> PreflightFailure | None:
    after = {one.rank: one for one in loaded}
    for one in saved:
        what = _difference(one, after.get(one.rank))
        if what is not None:
            message = (
                f"a run that resumes from a checkpoint would not continue as it was: {what}. Do not count on --resume "
                "with this recipe: write another distributed.strategy, or another train.optim."
            )
            return PreflightFailure("differs", STAGES["loading"], message, one.rank)
    return None


def _difference(saved: RankNotes, loaded: RankNotes | None) -> str | None:
    if loaded is None:
        return f"rank {saved.rank} was not there when it was loaded back"
    weights, state = (saved.weights, loaded.weights), (saved.optimizer, loaded.optimizer)
    for kind, (was, now) in {"the weights": weights, "the optimizer's state": state}.items():
        wrong = [name for name in was if was[name] != now.get(name)]
        wrong += [f"{name} (not saved)" for name in now if name not in was]
        if wrong:
            named = ", ".join(wrong[:5]) + (", ..." if len(wrong) > 5 else "")
            return f"{len(wrong)} of {len(was)} tensors of {kind} are not what was saved (rank {saved.rank}: {named})"
    before = saved.losses[-len(loaded.losses) :] if loaded.losses else []
    for was_loss, now_loss in zip(before, loaded.losses, strict=False):
        if not math.isclose(was_loss, now_loss, rel_tol=LOSS_TOLERANCE) and not math.isnan(was_loss):
            return (
                f"the loss of the next step is {now_loss:.6g} in place of {was_loss:.6g} (rank {saved.rank}), though "
                "weights and optimizer are equal: the frozen weights or the random state"
            )
    return None
