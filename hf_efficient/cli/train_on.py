"""``hf-efficient train --on``: a recipe as a job of a cluster, printed, written or submitted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hf_efficient.cluster.job import Job, Target
    from hf_efficient.recipe.schema import Recipe

__all__ = ["ClusterFlags", "train_on"]

OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="TARGET", help="Print the job of a cluster instead: slurm, skypilot or kubernetes."),
]
SubmitOption = Annotated[bool, typer.Option("--submit", help="With --on: hand the job to the cluster.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="With --on: write the job to a file.")
]
ClusterOption = Annotated[
    Path | None, typer.Option("--cluster", metavar="FILE", help="With --on: the cluster, described in YAML.")
]
GpusOption = Annotated[str | None, typer.Option("--gpus", metavar="TYPE:N", help="GPUs of each machine: H100:8, or 8.")]
TimeOption = Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="Time limit: 90m, 12h, 2d.")]
SharedOption = Annotated[
    str | None, typer.Option("--shared", metavar="PATH", help="Storage that all machines share; output_dir is on it.")
]
PartitionOption = Annotated[str | None, typer.Option("--partition", metavar="NAME", help="Slurm's partition.")]
AccountOption = Annotated[str | None, typer.Option("--account", metavar="NAME", help="Slurm's account.")]
ImageOption = Annotated[
    str | None, typer.Option("--image", metavar="NAME", help="Container image (SkyPilot, Kubernetes).")
]
InfraOption = Annotated[
    str | None, typer.Option("--infra", metavar="CLOUD", help="SkyPilot's cloud, region, zone: aws/us-east-1.")
]
NamespaceOption = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="Kubernetes' namespace.")]


@dataclass(frozen=True)
class ClusterFlags:
    """The flags that make sense with ``--on``, as typed."""

    on: str | None
    submit: bool
    output: Path | None
    cluster: Path | None
    gpus: str | None
    time: str | None
    shared: str | None
    partition: str | None
    account: str | None
    image: str | None
    infra: str | None
    namespace: str | None

    def any(self) -> bool:
        """Whether one of them was given."""
        return any(value not in (None, False) for value in astuple(self))

    def values(self) -> dict[str, str | None]:
        """Those that stand for a key of a cluster's description."""
        names = ("gpus", "time", "shared", "partition", "account", "image", "infra", "namespace")
        return {f"--{name}": getattr(self, name) for name in names}


def train_on(
    recipe: str, resolved: Recipe, flags: ClusterFlags, switches: Sequence[str], *, others: Mapping[str, bool]
) -> None:
    """Print the job, write it or submit it.

    Args:
        recipe: as the user named it.
        resolved: the recipe, the command line's overrides included.
        flags: about the cluster.
        switches: ``--resume``, ``--overwrite``, ``--debug`` as given.
        others: flags of a run on this machine, and whether they were given.

    Raises:
        SetupError: flags that contradict each other; the cluster's command is not here.
        RecipeError: the recipe and the cluster contradict each other.
    """
    from hf_efficient.cluster.job import job_of
    from hf_efficient.cluster.load import load_cluster
    from hf_efficient.cluster.submission import check_program, job_text, submit
    from hf_efficient.launch.output import plan_output

    target = _target(flags, others)
    job = job_of(
        target,
        resolved,
        load_cluster(flags.cluster, flags.values()),
        source=recipe,
        directory=str(Path.cwd()),
        switch=next((one for one in switches if one != "--debug"), ""),
        debug="--debug" in switches,
    )
    text = job_text(target, job)
    if flags.submit:
        check_program(target)
        if target == "slurm":
            plan_output(resolved)  # the login machine sees the storage: refuse now, not after days in the queue
    if flags.output is not None:
        _write(flags.output, text)
    elif not flags.submit:
        print(text, end="")
    if flags.submit:
        raise SystemExit(submit(target, job, text, flags.output))
    _tell_next(target, job, flags.output)


def _target(flags: ClusterFlags, others: Mapping[str, bool]) -> Target:
    from hf_efficient.cluster.job import target_of
    from hf_efficient.errors import SetupError

    if flags.on is None:
        given = {**flags.values(), "--submit": flags.submit, "--output": flags.output, "--cluster": flags.cluster}
        name = next(name for name, value in given.items() if value not in (None, False))
        raise SetupError(
            f"{name}: is about a cluster's job. Add --on slurm, --on skypilot or --on kubernetes, or leave it out."
        )
    for name, on in others.items():
        if on:
            raise SetupError(f"{name}: is about a run on this machine, and --on asks for a cluster's; leave one out.")
    return target_of(flags.on)


def _write(file: Path, text: str) -> None:
    from hf_efficient.errors import OutputError

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"--output: {file} cannot be written: {error.strerror or error}.") from error


def _tell_next(target: Target, job: Job, file: Path | None) -> None:
    """How to submit what was written; on standard error, so that standard output is the job alone."""
    from hf_efficient.cluster.submission import submit_command

    if file is not None:
        command = shlex.join(submit_command(target, job, str(file)))
        print(f"{file} is written. Submit it by: {command}", file=sys.stderr)
    if job.gpus is None:
        print("No GPUs are asked for; --gpus TYPE:COUNT does.", file=sys.stderr)
