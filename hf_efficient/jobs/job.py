"""A recipe on a cluster: what all three kinds of job have in common, checked before one is written."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.jobs.cluster import Cluster, Gpus, gpus_of, seconds_of
from hf_efficient.launch.output import local_inputs
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.rules.training import only_on_the_command_line
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.tree import any_of, nearest
from hf_efficient.recipe.writing import dump_yaml, put_nested, whole_values
from hf_efficient.text import counted
from hf_efficient.version import __version__


def standalone_recipe(recipe: Recipe) -> str:
    """YAML that loads to the same recipe anywhere: a later change of a file changes no job. A job decides by its own
    switches, at each start, what becomes of an earlier run."""
    named = [key for key, origin in recipe.provenance.items() if origin.is_set or key in ("name", "output_dir")]
    values: dict[str, Any] = {}
    for key, value in whole_values(recipe.resolved(), named).items():
        if key != "existing_output":
            put_nested(values, key, value)
    return dump_yaml(values)


Target = Literal["slurm", "skypilot", "kubernetes"]
TARGETS: tuple[Target, ...] = ("slurm", "skypilot", "kubernetes")

_OTHER_NAMES: dict[str, Target] = {"sbatch": "slurm", "sky": "skypilot", "k8s": "kubernetes", "kubectl": "kubernetes"}
_LONGEST_NAME = 40  # Kubernetes adds ``-node-0-0`` and more for the pods of a job, and allows 63 characters


@dataclass(frozen=True)
class Job:
    name: str
    source: str  # the recipe as the user named it
    recipe: str  # its text, which stands alone
    output_dir: str  # as every machine sees it
    nodes: int
    processes: int  # on each machine
    gpus: Gpus | None  # of each machine
    seconds: int | None  # the time limit of a start
    switch: str  # for the first start: --resume, --overwrite or nothing
    overrides: tuple[str, ...]  # what the command line alone may say
    flags: tuple[str, ...]  # for every start: --keep-going, --debug
    directory: str  # the folder that the job was written in
    version: str
    cluster: Cluster


def target_of(name: str) -> Target:
    if name in TARGETS:
        return cast("Target", name)
    meant = _OTHER_NAMES.get(name.lower()) or nearest(name, TARGETS)
    remedy = f"Did you mean --on {meant}?" if meant else f"Write {any_of(TARGETS)}."
    raise SetupError(f"--on: {name} is not a known kind of cluster. {remedy}")


def job_of(
    target: Target,
    recipe: Recipe,
    cluster: Cluster,
    *,
    source: str,
    directory: str,
    switch: str = "",
    flags: Sequence[str] = (),
) -> Job:
    gpus = gpus_of(cluster.gpus) if cluster.gpus is not None else None
    # The current folder is that of Slurm's machines as well.
    folder = directory if target == "slurm" and not recipe.output_dir.startswith("~") else ""
    output = posixpath.normpath(posixpath.join(folder, recipe.output_dir))
    problems = [
        *_process_problems(recipe, cluster, gpus),
        *_storage_problems(target, recipe, cluster, output),
        *_unreachable_inputs(target, recipe, cluster, directory),
    ]
    if problems:
        raise RecipeError(problems)
    processes = recipe.distributed.processes
    if processes == "auto":
        processes = gpus.count if gpus is not None else 1
        recipe = change_recipe(recipe, {"distributed.processes": processes})
    recipe = with_accumulation(recipe, recipe.distributed.nodes * processes)
    return Job(
        name=_name(recipe.name),
        source=source,
        recipe=standalone_recipe(recipe),
        output_dir=output,
        nodes=recipe.distributed.nodes,
        processes=processes,
        gpus=gpus,
        seconds=seconds_of(cluster.time_limit) if cluster.time_limit is not None else None,
        switch=switch,
        overrides=only_on_the_command_line(recipe),
        flags=tuple(flags),
        directory=directory,
        version=__version__,
        cluster=cluster,
    )


def _name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not plain[:1].isalpha():  # Kubernetes makes a service of it
        plain = f"run-{plain}"
    return plain[:_LONGEST_NAME].strip("-")


def _process_problems(recipe: Recipe, cluster: Cluster, gpus: Gpus | None) -> Iterator[Problem]:
    processes, key = recipe.distributed.processes, "distributed.processes"
    if processes == "auto":
        if gpus is not None or recipe.train.get("use_cpu"):
            return
        message = "is auto, one process per GPU, but the number of GPUs of a machine is not given."
        remedy = "Write --gpu H100 --num-gpus 8, or distributed.processes=N."
    elif gpus is None or processes == gpus.count:
        return
    elif processes > gpus.count:
        message = f"is {processes}, but {cluster.where('gpus')} gives each machine {counted(gpus.count, 'GPU')}."
        remedy = f"Write distributed.processes=auto or {gpus.count}, or more GPUs per machine."
    else:
        message = f"is {processes}, but {cluster.where('gpus')} pays for {counted(gpus.count, 'GPU')} on each machine."
        remedy = f"Write distributed.processes=auto, or --num-gpus {processes}."
    yield Problem(_where(recipe, key), key, message, remedy)


def _storage_problems(target: Target, recipe: Recipe, cluster: Cluster, output: str) -> Iterator[Problem]:
    shared = cluster.shared
    if shared is None and target != "slurm":
        message = "is missing: the run would be lost with its machines."
        remedy = "Give the path at which they mount shared storage (--shared /mnt/runs)."
        yield Problem(cluster.where(""), "shared", message, remedy)
    if shared is not None and not PurePosixPath(output).is_relative_to(posixpath.normpath(shared)):
        message = (
            f"is {recipe.output_dir}, which is not on the shared storage ({cluster.where('shared')}): other machines, "
            "and a later start on another one, would not see its checkpoints."
        )
        remedy = f"Write output_dir={posixpath.join(shared, posixpath.basename(output))}."
        yield Problem(_where(recipe, "output_dir"), "output_dir", message, remedy)


def _unreachable_inputs(target: Target, recipe: Recipe, cluster: Cluster, directory: str) -> Iterator[Problem]:
    """Local files that the machines do not have: SkyPilot copies the current folder, a pod sees the shared storage."""
    for key, text in local_inputs(recipe) if target != "slurm" else ():
        path = Path(directory, Path(text).expanduser())
        if not path.exists() or (cluster.shared is not None and Path(text).is_relative_to(cluster.shared)):
            continue
        copied = target == "skypilot" and not Path(text).is_absolute() and path.resolve().is_relative_to(directory)
        if not copied and key != "data.cache_dir":
            others = "SkyPilot copies the current folder alone" if target == "skypilot" else "no pod sees it"
            message = f"is {text}, which is on the disk of this machine; {others}."
            remedy = f"Copy it to {cluster.shared or 'the shared storage'}, and write the path that it has there."
            yield Problem(_where(recipe, key), key, message, remedy)


def _where(recipe: Recipe, key: str) -> str:
    origin = recipe.provenance.get(key)
    return str(origin) if origin is not None else str(recipe.path or recipe.name)
