"""A recipe in; its trials run, each remembered in a journal; the tuned recipe, the ladder and what was tried out."""

import contextlib
import datetime
import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from hf_efficient.errors import OutputError, SetupError, writing
from hf_efficient.facts.environment import accelerator_count, cpu_model, describe_environment, thread_count
from hf_efficient.jobs.job import Cluster
from hf_efficient.jobs.targets import check_program, srun_command
from hf_efficient.launch.command import Layout, accelerate_command, layout_of
from hf_efficient.recipe.load import change_recipe, fixed_recipe, load_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.tuning import TUNING_SCHEMA_VERSION, TrialRun, Tuning
from hf_efficient.reporting.trials import gain_words
from hf_efficient.run_dir.json_file import folder_of_its_own, strict_json, write_whole
from hf_efficient.run_dir.jsonl import JsonlFile
from hf_efficient.trials.goal import Goal, Wanted
from hf_efficient.trials.process import WORKER, Job, Progress, RunFailed, run_to_end, worker_command
from hf_efficient.trials.search import Search
from hf_efficient.version import __version__

TUNED: Final = "tuned.yaml"
TUNING: Final = "tuning.json"
PAGE: Final = "tuning.html"
JOURNAL: Final = "journal.jsonl"


def folder_of(recipe: Recipe, name: str = "tuning") -> Path:
    return Path(f"{recipe.output_dir}-{name}").expanduser()


def tune(
    argument: str,
    overrides: Sequence[str],
    goal: Goal,
    progress: Progress,
    folder: Path | None = None,
    cluster: Cluster | None = None,
) -> Tuning:
    """``tuned.yaml`` and ``tuning.json`` are written to the folder, in which a later call continues. ``cluster``: of
    Slurm, whose machines run the trials, and see the folder. Raises ``HfEfficientError``: the recipe is wrong, does
    not train or fit, or cannot be tuned; the folder is another's."""
    recipe = load_recipe(argument, overrides)
    folder = folder or folder_of(recipe)
    trials = trials_of(recipe, argument, overrides, folder, goal, cluster)

    def settings_of(changes: Mapping[str, Any]) -> Settings:
        changed = change_recipe(recipe, changes)
        return Settings(with_accumulation(changed, trials.layout.processes), train_fields(changed.objective))

    search = Search(goal, settings_of, trials.run, progress)
    started = datetime.datetime.now(datetime.timezone.utc)
    with contextlib.closing(trials):
        search.go()
    found = Tuning(
        schema_version=TUNING_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recipe=argument,
        objective=goal.objective,
        started_at=started.isoformat(timespec="seconds"),
        environment=describe_environment(),
        settings={name: getattr(goal, name) for name in ("minutes", "most_p95_seconds", "most_bytes", "tolerance")},
        ladder=search.ladder,
        tried=search.tried,
        changes=search.base.changes,
        spent_seconds=search.spent,
        total=search.total,
        notes=search.notes,
    )
    with writing("--folder", folder):
        write_whole(folder / TUNING, strict_json(found))
        if found.changes:
            write_whole(folder / TUNED, tuned_recipe(recipe, found, folder / TUNED))
        else:
            (folder / TUNED).unlink(missing_ok=True)
    return found


def trials_of(
    recipe: Recipe, argument: str, overrides: Sequence[str], folder: Path, goal: Goal, cluster: Cluster | None = None
) -> "Trials":
    """Of the recipe that the argument names, within the goal's memory. ``SetupError``: they do not run such a one."""
    layout = trial_layout(recipe, cluster)
    if cluster is not None:
        check_program("slurm")
    whole = json.dumps(recipe.resolved(), sort_keys=True).encode()
    about = {
        "recipe": hashlib.sha256(whole).hexdigest()[:16],
        "hf_efficient": __version__,
        "cpu": cpu_model(),
        "threads": thread_count(),
        "processes": layout.processes,
        "most_bytes": goal.most_bytes,
        "cluster": None if cluster is None else cluster.model_dump(mode="json"),
    }
    return Trials(argument, overrides, folder, about, layout, cluster)


def trial_layout(recipe: Recipe, cluster: Cluster | None = None) -> Layout:
    """The processes of each trial. Raises ``SetupError``: trials do not run such a recipe."""
    here = cluster is None and recipe.distributed.processes == "auto"
    layout = layout_of(recipe, device_count=accelerator_count() if here else 1, cores=thread_count())
    if recipe.objective != "sft":
        raise SetupError(f"objective: is {recipe.objective}, and trials are of sft alone. Write `objective: sft`.")
    if layout.nodes > 1:
        raise SetupError(
            f"distributed.nodes: is {layout.nodes}, and trials run on one machine. Write distributed.nodes=1, and "
            "measure what one machine does."
        )
    if cluster is not None and layout.processes > 1:
        raise SetupError(
            f"distributed.processes: is {layout.processes}, and a trial on a cluster is one process. Write "
            "distributed.processes=1, and measure what one GPU does."
        )
    return layout


def tuned_recipe(recipe: Recipe, found: Tuning, path: Path) -> str:
    """It extends the recipe; every changed line says what its change gave."""
    comments: dict[str, str] = {}
    for one in found.tried:
        if one.verdict == "accepted" and one.gain is not None:
            gain = f"{gain_words(one.gain)} {found.objective.replace('_', ' ')}"
            comments |= dict.fromkeys(one.changes, f"{one.knob}: {gain}, {one.gain.how.partition(':')[0]}")
    remark = f"Tuned for {found.objective} by hf-efficient tune {__version__}"
    remark += f": {gain_words(found.total)} in all." if found.total is not None else "."
    own = {"output_dir": f"{recipe.output_dir}-tuned"}
    return fixed_recipe(recipe, {**found.changes, **own}, path, remark, comments)


@dataclass
class Trials:
    """Runs changes of one recipe. What a journal holds already is taken from there, in the order in which it came.
    ``about`` must be alike to continue. ``OutputError``: the folder is another recipe's, or not writable."""

    argument: str
    overrides: Sequence[str]
    folder: Path
    about: Mapping[str, Any]
    layout: Layout
    cluster: Cluster | None = None
    _held: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        head, path = {"schema_version": TUNING_SCHEMA_VERSION, "about": dict(self.about)}, self.folder / JOURNAL
        with writing("--folder", self.folder):
            self._journal = JsonlFile(path)
            if not path.is_file():
                self._journal.append(json.dumps(head).encode() + b"\n")
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if lines[:1] != [json.loads(json.dumps(head))]:
            raise OutputError(
                f"--folder: {self.folder} holds trials of another recipe, version, machine or --max-memory. "
                "Remove it, or write --folder with a new name."
            )
        for one in lines[1:]:
            if one.get("kind") != "no_time":  # this call may have more
                self._held.setdefault(json.dumps(one["changes"], sort_keys=True), []).append(one)

    def run(self, changes: Mapping[str, Any], wanted: Wanted) -> TrialRun:
        """Train once; ``RunFailed`` where it does not."""
        name = json.dumps(changes, sort_keys=True)
        waiting = self._held.get(name)
        if waiting:
            return _outcome(waiting.pop(0))
        found = {"changes": dict(changes), **self._measured(changes, wanted)}
        with writing("--folder", self._journal.path):
            self._journal.append(json.dumps(found).encode() + b"\n")
        return _outcome(found)

    def close(self) -> None:
        shutil.rmtree(self.folder / "tokenised", ignore_errors=True)

    def _measured(self, changes: Mapping[str, Any], wanted: Wanted) -> dict[str, Any]:
        options = {"changes": dict(changes), "wanted": msgspec.to_builtins(wanted)}
        job, began = Job("trial", self.argument, self.overrides, options), time.monotonic()
        found: dict[str, Any]
        try:
            with folder_of_its_own(self.folder / "trial") as folder:
                command = worker_command(job, folder.resolve())
                if self.layout.processes > 1:
                    changed = change_recipe(load_recipe(self.argument, self.overrides), changes)
                    command = accelerate_command(changed, str(folder.resolve()), [], self.layout, module=WORKER)
                threads: int | None = max(1, self.layout.cores // self.layout.processes)
                if (cluster := self.cluster) is not None:
                    command = ["python", *command[1:]] if cluster.activate else command
                    command, threads = srun_command(cluster, self.folder.resolve().name, command), cluster.cpus
                found = {"run": run_to_end(command, folder, threads)}
        except RunFailed as error:
            found = {"failure": str(error), "kind": error.kind}
        return {**found, "wall_seconds": time.monotonic() - began}


def _outcome(found: Mapping[str, Any]) -> TrialRun:
    if "failure" in found:
        raise RunFailed(found["failure"], found["kind"], found["wall_seconds"])
    return msgspec.convert({**found["run"], "wall_seconds": found["wall_seconds"]}, TrialRun)
