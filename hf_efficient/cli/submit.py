"""``hf-efficient submit``: a recipe as the job of a cluster, submitted, written or printed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, check_switches, with_num_gpus, write_text
from hf_efficient.errors import SetupError

if TYPE_CHECKING:
    from hf_efficient.jobs.job import Job, Target
    from hf_efficient.recipe.schema import Recipe


def submit(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="TARGET", help="The cluster: slurm, skypilot or kubernetes.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job and stop.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the job to a file, and do not submit it.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in output_dir.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Let the run show tracebacks and libraries' messages.")
    ] = False,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="FILE", help="YAML file that describes the cluster.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The kind of GPU: H100.")] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--num-gpus", metavar="N", help="GPUs of each machine, as distributed.processes=N.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="Time limit: 90m, 12h, 2d.")] = None,
    shared: Annotated[
        str | None,
        typer.Option("--shared", metavar="PATH", help="Storage that all machines share, and that holds output_dir."),
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", metavar="NAME", help="Slurm's partition.")] = None,
    account: Annotated[str | None, typer.Option("--account", metavar="NAME", help="Slurm's account.")] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="NAME", help="Container image (SkyPilot, Kubernetes).")
    ] = None,
    infra: Annotated[
        str | None, typer.Option("--infra", metavar="CLOUD", help="SkyPilot's cloud, region, zone: aws/us-east-1.")
    ] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="Kubernetes' namespace.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Let SkyPilot start machines without asking you first.")] = False,
) -> None:
    """Submit a recipe as a job of Slurm, SkyPilot or Kubernetes.

    The job contains the whole recipe: later changes of its file do not reach it.

    Example: hf-efficient submit llama3.1-8b/lora --on slurm --gpu H100 --num-gpus 8 --time 12h --dry-run

    On two machines that a file describes:

    hf-efficient submit llama3.1-8b/lora distributed.nodes=2 distributed.processes=auto --on slurm --cluster my.yaml
    """
    from hf_efficient.jobs.cluster import load_cluster
    from hf_efficient.jobs.job import TARGETS, job_of, target_of
    from hf_efficient.launch.started import parse_flags
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.tree import any_of

    if on is None:
        raise SetupError(f"--on: is missing. Write {any_of(tuple(f'--on {one}' for one in TARGETS))}.")
    target = target_of(on)
    if dry_run and output is not None:
        raise SetupError("--output: --dry-run prints the job and writes no file. Leave one of them out.")
    switch = check_switches(resume=resume, overwrite=overwrite)
    flags = parse_flags([recipe, *with_num_gpus(overrides or [], num_gpus), *switch])
    resolved = load_recipe(flags.recipe, flags.overrides)
    described = {
        "--gpu": gpu,
        "--num-gpus": None if num_gpus is None else str(num_gpus),
        "--time": time,
        "--shared": shared,
        "--partition": partition,
        "--account": account,
        "--image": image,
        "--infra": infra,
        "--namespace": namespace,
    }
    job = job_of(
        target,
        resolved,
        load_cluster(cluster, described),
        source=recipe,
        directory=str(Path.cwd()),
        switch="".join(switch),
        debug=debug,
    )
    if dry_run or output is not None:
        _print_job(target, job, output, yes=yes)
    else:
        _submit(target, job, resolved, yes=yes)


def _print_job(target: Target, job: Job, output: Path | None, *, yes: bool) -> None:
    """On standard output, or into a file; how to submit it goes to standard error."""
    from hf_efficient.jobs.targets import TEXTS, WRITTEN_MARK, submit_command

    text = TEXTS[target](job)
    if output is None:
        print(text, end="")
    else:
        write_text("--output", output, text, mark=WRITTEN_MARK)
        command = shlex.join(submit_command(target, job, str(output), yes=yes))
        print(f"{output} is written. Submit it by: {command}", file=sys.stderr)
    _remark_gpus(job)


def _submit(target: Target, job: Job, recipe: Recipe, *, yes: bool) -> None:
    from hf_efficient.jobs.targets import TEXTS, check_program, submit_job
    from hf_efficient.launch.output import plan_output

    text = TEXTS[target](job)
    check_program(target)
    if target == "slurm":
        plan_output(recipe)  # the login machine sees the storage: refuse now, not after days in the queue
    _remark_gpus(job)
    raise SystemExit(submit_job(target, job, text, yes=yes))


def _remark_gpus(job: Job) -> None:
    if job.gpus is None:
        print("The job asks for no GPUs. --num-gpus N asks for N on each machine.", file=sys.stderr)
