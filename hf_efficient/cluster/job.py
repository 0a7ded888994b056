"""A recipe on a cluster: what the jobs of all three say, checked before any of them is written."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from hf_efficient.cluster.amounts import Gpus, gpus_of, seconds_of
from hf_efficient.cluster.description import Cluster
from hf_efficient.cluster.local_inputs import unreachable_inputs
from hf_efficient.cluster.recipe_text import standalone_recipe
from hf_efficient.errors import Problem, RecipeError, SetupError
from hf_efficient.recipe.global_batch import with_accumulation
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.words import any_of, nearest
from hf_efficient.version import __version__

__all__ = ["TARGETS", "Job", "Target", "job_of", "target_of"]

Target = Literal["slurm", "skypilot", "kubernetes"]
TARGETS: tuple[Target, ...] = ("slurm", "skypilot", "kubernetes")

_OTHER_NAMES: dict[str, Target] = {"sbatch": "slurm", "sky": "skypilot", "k8s": "kubernetes", "kubectl": "kubernetes"}
_LONGEST_NAME = 40
"""Kubernetes adds ``-node-0-0`` and more for the pods of a job, and allows 63 characters."""


@dataclass(frozen=True)
class Job:
    """A run, as every cluster needs to know it.

    Attributes:
        name: lower-case letters, digits and dashes, at most 40.
        source: the recipe as the user named it.
        recipe: the recipe's text, which stands alone.
        output_dir: as every machine sees it.
        nodes: machines.
        processes: on each machine.
        gpus: of each machine; None for a run on processors.
        seconds: that a start may take; None for no limit.
        switch: ``--resume`` or ``--overwrite`` for the first start; ``""`` for neither.
        debug: show tracebacks.
        directory: the folder that the job was written in.
        version: of the package that wrote it.
        cluster: the machines.
    """

    name: str
    source: str
    recipe: str
    output_dir: str
    nodes: int
    processes: int
    gpus: Gpus | None
    seconds: int | None
    switch: str
    debug: bool
    directory: str
    version: str
    cluster: Cluster


def target_of(said: str) -> Target:
    """The cluster that ``--on`` names.

    Raises:
        SetupError: none of the three.
    """
    for target in TARGETS:
        if said == target:
            return target
    meant = _OTHER_NAMES.get(said.lower()) or nearest(said, TARGETS)
    remedy = f"Did you mean --on {meant}?" if meant else f"Write {any_of(TARGETS)}."
    raise SetupError(f"--on: {said} is no kind of cluster that a job can be written for. {remedy}")


def job_of(
    target: Target, recipe: Recipe, cluster: Cluster, *, source: str, directory: str, switch: str = "", debug: bool
) -> Job:
    """Put a recipe and a cluster together.

    Args:
        target: which kind of cluster.
        recipe: resolved.
        cluster: the machines.
        source: the recipe as the user named it.
        directory: current folder, absolute.
        switch: ``--resume``, ``--overwrite`` or nothing, for the first start.
        debug: show tracebacks.

    Raises:
        RecipeError: what contradicts what, all at once.
    """
    gpus = gpus_of(cluster.gpus) if cluster.gpus is not None else None
    output = _output_dir(target, recipe, directory)
    problems = [
        *_process_problems(recipe, cluster, gpus),
        *_storage_problems(target, recipe, cluster, output),
        *unreachable_inputs(target, recipe, cluster, directory),
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
        debug=debug,
        directory=directory,
        version=__version__,
        cluster=cluster,
    )


def _name(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if not plain[:1].isalpha():  # Kubernetes makes a service of it
        plain = f"run-{plain}"
    return plain[:_LONGEST_NAME].strip("-")


def _output_dir(target: Target, recipe: Recipe, directory: str) -> str:
    """Absolute where the current folder is the machines' own as well."""
    said = recipe.output_dir
    return posixpath.normpath(posixpath.join(directory, said) if target == "slurm" and said[:1] != "~" else said)


def _process_problems(recipe: Recipe, cluster: Cluster, gpus: Gpus | None) -> Iterator[Problem]:
    processes = recipe.distributed.processes
    where = _where(recipe, "distributed.processes")
    if processes == "auto":
        if gpus is None and not recipe.train.get("use_cpu"):
            yield Problem(
                where,
                "distributed.processes",
                "is auto, one process per GPU, but nothing says how many GPUs a machine of the cluster has.",
                "Give them (--gpus H100:8), or write distributed.processes=N.",
            )
    elif gpus is not None and processes > gpus.count:
        message = f"is {processes}, but {cluster.where('gpus')} gives each machine {gpus.count} GPU"
        remedy = f"Write distributed.processes=auto or {gpus.count}, or more GPUs per machine."
        yield Problem(where, "distributed.processes", message + ("s." if gpus.count > 1 else "."), remedy)
    elif gpus is not None and processes < gpus.count:
        message = f"is {processes}, but {cluster.where('gpus')} pays for {gpus.count} GPUs on each machine."
        remedy = f"Write distributed.processes=auto, or --gpus {f'{gpus.kind}:' if gpus.kind else ''}{processes}."
        yield Problem(where, "distributed.processes", message, remedy)


def _storage_problems(target: Target, recipe: Recipe, cluster: Cluster, output: str) -> Iterator[Problem]:
    shared = cluster.shared
    if shared is None:
        if target != "slurm":
            yield Problem(
                cluster.where(""),
                "shared",
                "is missing: the run would be lost with its machines.",
                "Give the path at which they mount shared storage (--shared /mnt/runs).",
            )
    elif not PurePosixPath(output).is_relative_to(posixpath.normpath(shared)):
        yield Problem(
            _where(recipe, "output_dir"),
            "output_dir",
            f"is {recipe.output_dir}, which is not on the shared storage ({cluster.where('shared')}): other machines, "
            "and a later start on another one, would not see its checkpoints.",
            f"Write output_dir={posixpath.join(shared, posixpath.basename(output))}.",
        )


def _where(recipe: Recipe, key: str) -> str:
    origin = recipe.provenance.get(key)
    return str(origin) if origin is not None else str(recipe.path or recipe.name)
