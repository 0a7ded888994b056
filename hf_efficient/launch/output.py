"""The output directory: refuse, resume or overwrite, by one run at a time; and the resolved recipe in it.

Deciding changes nothing. What a run of ours left is removed right before the first step, when all else has been read.
"""

import fcntl
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf_efficient.errors import OutputError, writing
from hf_efficient.launch import checkpoints as held
from hf_efficient.launch.checkpoints import EFFICIENCY, check_same_run, is_a_run
from hf_efficient.launch.started import ALONE, Launch
from hf_efficient.recipe.load import dump_yaml
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.checkpoints import MANIFEST, checkpoints, fault_of, step_of, was_cut_off
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.run_dir.mirror import newer_in_mirror, reached
from hf_efficient.run_dir.paths import RESOLVED, STARTING, rank_files

logger = logging.getLogger(__name__)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the directory for this process; the operating system lets go of it however the process ends."""
    with writing("output_dir", directory):
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".hf_efficient.lock").open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            now = f"another run is writing to {directory} right now"
            raise OutputError(f"output_dir: {now}. Wait for it, or write another output_dir=...") from error
        except OSError:
            logger.debug("%s is on a file system without locks.", directory, exc_info=True)
        yield


@dataclass(frozen=True)
class OutputPlan:
    directory: Path
    checkpoint: Path | None = None  # to resume from
    replaces: bool = False  # a run of ours that is there is removed before the first step, and
    keeps_records: bool = False  # its records stay: it is the same run, whose lost steps were paid for
    remark: str = ""
    agents: tuple[str, ...] = ()  # of the launch that this start belongs to

    @property
    def continues(self) -> bool:
        """Whether this is one more start of a run that is there, whose account it adds to."""
        return self.keeps_records or (self.checkpoint is not None and _same(self.checkpoint.parent, self.directory))


Damaged = Mapping[Path, str]  # checkpoints whose bytes are not what was saved, and what is wrong with them


def plan_output(recipe: Recipe, launch: Launch = ALONE, damaged: Damaged = MappingProxyType({})) -> OutputPlan:
    """Decide where the run starts from; changes nothing but creating the directory. A launch that has come to train
    there before continues, whatever the recipe says. Of checkpoints names and sizes of files are looked at alone."""
    return replace(_plan(recipe, launch, damaged), agents=launch.agents)


def _plan(recipe: Recipe, launch: Launch, damaged: Damaged) -> OutputPlan:
    directory = Path(recipe.output_dir).expanduser()
    _check_writable(directory)
    named = recipe.train.get("resume_from_checkpoint")
    checkpoint = Path(str(named)).expanduser() if named else None
    if launch.continues_in(held.resolved_of(directory).get("launched_by") or ()):
        again = _resumed(directory, recipe, damaged)  # before its own first checkpoint it begins where the run began
        remark = f"the launcher started the processes again; {again.remark}".removesuffix("; ")
        return replace(again, checkpoint=again.checkpoint or checkpoint, remark=remark)
    if checkpoint is not None:
        _check_named(checkpoint, recipe, damaged)
        if _same(checkpoint.parent, directory):
            return OutputPlan(directory, checkpoint)
    if not is_a_run(directory):
        _check_nothing_foreign(directory)
        continues = recipe.existing_output == "resume" or launch.is_restart
        if continues and rank_files(directory / EFFICIENCY / STARTING, "spans"):
            remark = "the last start never came to train: what it has spent counts"
            return OutputPlan(directory, checkpoint, keeps_records=True, remark=remark)
        nothing = "there is no run to resume: it starts from the first step" if continues and checkpoint is None else ""
        return OutputPlan(directory, checkpoint, remark=nothing)
    if recipe.existing_output == "overwrite":
        _check_inputs_lie_elsewhere(directory, recipe)
        _check_nothing_foreign(directory, held.written_by_the_run(directory))
        return OutputPlan(directory, checkpoint, replaces=True)
    if recipe.existing_output == "resume" and checkpoint is None:
        return _resumed(directory, recipe, damaged)
    last = [path.name for path in checkpoints(directory)][-1:]
    raise OutputError(
        f"output_dir: {directory} already holds a run{f' (its last checkpoint is {last[0]})' if last else ''}. "
        "Continue it by --resume, replace it by --overwrite, or write another output_dir=..."
    )


def clear_output(plan: OutputPlan, mirror: str | None = None) -> None:
    if plan.replaces:
        held.remove_run(plan.directory, keep_records=plan.keeps_records)
        if mirror is not None:
            with reached(mirror) as place:
                place.remove(*place.steps())


def take_from_mirror(recipe: Recipe, url: str, launch: Launch = ALONE) -> str:
    """Before ``plan_output``: where the run is to continue, fetch the newest checkpoint that is not whole here, and say
    so. Raises ``OutputError``: a mirror that cannot be read, or that holds another run."""
    directory = Path(recipe.output_dir).expanduser()
    restarted = launch.is_restart or launch.continues_in(held.resolved_of(directory).get("launched_by") or ())
    if recipe.existing_output == "resume" or restarted:
        named = recipe.train.get("resume_from_checkpoint")
        found = None if named else newer_in_mirror(url, directory)
        return "" if found is None else f"{found.name} was fetched from {url}"
    with reached(url) as place:
        steps = place.steps()
    if steps and not (recipe.existing_output == "overwrite" and is_a_run(directory)):
        raise OutputError(
            f"checkpoints.mirror: {url} holds checkpoint-{steps[-1]} of another run. Continue it by --resume, "
            "remove it, or write another place."
        )
    return ""


def write_resolved_recipe(
    directory: Path, recipe: Recipe, environment: Mapping[str, Any], agents: Sequence[str] = ()
) -> Path:
    path = directory / EFFICIENCY / RESOLVED
    content = {
        "recipe": recipe.resolved(),
        "provenance": {key: str(origin) for key, origin in recipe.provenance.items() if origin.source != "default"},
        "environment": dict(environment),
        **({"launched_by": list(agents)} if agents else {}),
    }
    with writing("output_dir", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, dump_yaml(content))
    return path


def _resumed(directory: Path, recipe: Recipe, damaged: Damaged) -> OutputPlan:
    faults: dict[Path, str] = {}
    for checkpoint in reversed(checkpoints(directory)):
        fault = damaged.get(checkpoint) or fault_of(checkpoint)
        if fault is None:
            check_same_run(checkpoint, recipe)
            return OutputPlan(directory, checkpoint, remark="; ".join([*_passed_over(faults), *_unlisted(checkpoint)]))
        faults[checkpoint] = fault
    lost = {path: fault for path, fault in faults.items() if not was_cut_off(path)}
    if lost:
        named = "; ".join(f"{path.name}: {fault}" for path, fault in reversed(lost.items()))
        raise OutputError(
            f"output_dir: no checkpoint in {directory} is whole ({named}). Copy one back, start again by --overwrite, "
            "or write another output_dir=..."
        )
    if any((directory / name).is_file() for name in held.WEIGHTS):
        raise OutputError(
            f"output_dir: the run in {directory} is finished and kept no checkpoint to resume from. "
            "Replace it by --overwrite, or write another output_dir=..."
        )
    nothing = "there is no checkpoint yet: it starts again, and what it has spent so far counts"
    remark = "; ".join([*_passed_over(faults), nothing])
    return OutputPlan(directory, replaces=True, keeps_records=True, remark=remark)


def _passed_over(faults: Damaged) -> list[str]:
    return [f"{path.name} is passed over: {fault}" for path, fault in faults.items()]


def _unlisted(checkpoint: Path) -> list[str]:
    """A remark on a checkpoint from before there were manifests, or of a plain Trainer."""
    if (checkpoint / MANIFEST).is_file():
        return []
    return [f"{checkpoint.name} has no {MANIFEST}: its files could not be compared with what was saved"]


def _check_named(checkpoint: Path, recipe: Recipe, damaged: Damaged) -> None:
    fault = damaged.get(checkpoint) or fault_of(checkpoint)
    if fault is not None:
        others = ", ".join(str(path) for path in checkpoints(checkpoint.parent) if fault_of(path) is None)
        whole = f"Beside it these are whole: {others or 'none'}"
        raise OutputError(f"train.resume_from_checkpoint: {checkpoint}: {fault}. {whole}.")
    if _same(checkpoint.parent, Path(recipe.output_dir).expanduser()):
        later = [path.name for path in checkpoints(checkpoint.parent) if step_of(path) > step_of(checkpoint)]
        if later:
            raise OutputError(
                f"train.resume_from_checkpoint: {', '.join(later)} in the same directory would belong to another "
                "future of the run. Remove them, or write another output_dir=..."
            )
    check_same_run(checkpoint, recipe)


def _check_nothing_foreign(directory: Path, ours: Sequence[Path] = ()) -> None:
    found = [path.name for path in held.replaced_by_a_run(directory) if path not in ours]
    if found:
        raise OutputError(
            f"output_dir: {directory} holds {', '.join(found[:5])}{' and more' if len(found) > 5 else ''}, which this "
            "run would replace and no run of hf_efficient wrote. Move it away, or write another output_dir=..."
        )


def _check_inputs_lie_elsewhere(directory: Path, recipe: Recipe) -> None:
    for key, text in local_inputs(recipe):
        path = Path(text).expanduser()
        if path.exists() and path.resolve().is_relative_to(directory.resolve()):
            raise OutputError(
                f"{key}: {text} is in output_dir, which --overwrite would clear. "
                "Write another output_dir=..., or move it away first."
            )


def local_inputs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    named = {
        "model.id": recipe.model.id,
        "model.tokenizer": recipe.model.tokenizer,
        "distill.teacher.id": None if recipe.distill is None else recipe.distill.teacher.id,
        "data.cache_dir": recipe.data.cache_dir,
        "train.chat_template_path": recipe.train.get("chat_template_path"),
        "train.resume_from_checkpoint": recipe.train.get("resume_from_checkpoint"),
    }
    yield from ((key, str(value)) for key, value in named.items() if value)
    yield from ((f"{key}.path", source.path) for key, source in recipe.data.sources().items())


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _check_writable(directory: Path) -> None:
    with writing("output_dir", directory):
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
