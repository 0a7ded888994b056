"""``hf-efficient submit``: a recipe as the job of a cluster; ``check-node``: what each of its machines does first."""

from __future__ import annotations

import shlex
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hf_efficient.cli.output import (
    NUM_GPUS,
    Overrides,
    Overwrite,
    RecipeArgument,
    Resume,
    check_switches,
    with_num_gpus,
    write_text,
)
from hf_efficient.errors import SetupError
from hf_efficient.text import counted

_of_cluster = partial(Option, rich_help_panel="The cluster")


def submit(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    on: Annotated[str | None, _of_cluster(metavar="TARGET", help="The cluster: slurm, skypilot or kubernetes.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the job and stop.")] = False,
    output: Annotated[
        Path | None, Option(metavar="FILE", help="Write the job to a file, and do not submit it.")
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    keep_going: Annotated[bool, Option("--keep-going", help="As of `train`, within each start of the job.")] = False,
    debug: Annotated[bool, Option("--debug", help="Let the run show tracebacks and libraries' messages.")] = False,
    cluster: Annotated[Path | None, _of_cluster(metavar="FILE", help="YAML file that describes the cluster.")] = None,
    gpu: Annotated[str | None, _of_cluster(metavar="NAME", help="The kind of GPU: H100.")] = None,
    num_gpus: Annotated[int | None, _of_cluster(metavar="N", help=NUM_GPUS)] = None,
    time: Annotated[str | None, _of_cluster(metavar="LIMIT", help="Time limit: 90m, 12h, 2d.")] = None,
    shared: Annotated[
        str | None, _of_cluster(metavar="PATH", help="Storage that all machines share, and that holds output_dir.")
    ] = None,
    partition: Annotated[str | None, _of_cluster(metavar="NAME", help="Slurm's partition.")] = None,
    account: Annotated[str | None, _of_cluster(metavar="NAME", help="Slurm's account.")] = None,
    image: Annotated[str | None, _of_cluster(metavar="NAME", help="Container image (SkyPilot, Kubernetes).")] = None,
    infra: Annotated[
        str | None, _of_cluster(metavar="CLOUD", help="SkyPilot's cloud, region, zone: aws/us-east-1.")
    ] = None,
    namespace: Annotated[str | None, _of_cluster(metavar="NAME", help="Kubernetes' namespace.")] = None,
    yes: Annotated[bool, _of_cluster("--yes", help="Let SkyPilot start machines without asking you first.")] = False,
) -> None:
    """Submit a recipe as a job of Slurm, SkyPilot or Kubernetes.

    The job contains the whole recipe: later changes of its file do not reach it.

    Example: hf-efficient submit llama3.1-8b/lora --on slurm --gpu H100 --num-gpus 8 --time 12h --dry-run

    On two machines that a file describes:

    hf-efficient submit llama3.1-8b/lora distributed.nodes=2 distributed.processes=auto --on slurm --cluster my.yaml
    """
    from hf_efficient.jobs.job import TARGETS, job_of, load_cluster, target_of
    from hf_efficient.jobs.targets import TEXTS, WRITTEN_MARK, check_program, submit_command, submit_job
    from hf_efficient.launch.output import plan_output
    from hf_efficient.launch.restart import starts_of
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
    given = {"gpu": gpu, "num-gpus": num_gpus, "time": time, "shared": shared, "partition": partition}
    given |= {"account": account, "image": image, "infra": infra, "namespace": namespace}
    described = {f"--{name}": None if value is None else str(value) for name, value in given.items()}
    held = load_cluster(cluster, described)
    if keep_going:
        starts_of(resolved, (), keep_going=True)
    flags_of_train = ["--keep-going"] * keep_going + ["--debug"] * debug
    directory, switches = str(Path.cwd()), "".join(switch)
    job = job_of(target, resolved, held, source=recipe, directory=directory, switch=switches, flags=flags_of_train)
    text, code = TEXTS[target](job), 0
    if dry_run:
        print(text, end="")
    elif output is not None:
        write_text("--output", output, text, mark=WRITTEN_MARK)
        command = shlex.join(submit_command(target, job, str(output), yes=yes))
        print(f"{output} is written. Submit it by: {command}", file=sys.stderr)
    else:
        check_program(target)
        if target == "slurm":
            plan_output(resolved)  # the login machine sees the storage: refuse now, not after days in the queue
        code = submit_job(target, job, text, yes=yes)
    if job.gpus is None:
        print("The job asks for no GPUs. --num-gpus N asks for N on each machine.", file=sys.stderr)
    if code:
        raise SystemExit(code)


def check_node(
    output_dir: Annotated[Path, Argument(metavar="OUTPUT_DIR", help="The run directory, on shared storage.")],
    job: Annotated[str, Option("--job", help="Name of the job on the cluster, the same at every start.")],
    attempt: Annotated[str, Option("--attempt", help="Number or name of this start of the job.")],
    nodes: Annotated[int, Option("--nodes", min=1, help="Machines of the job.")] = 1,
    node_rank: Annotated[int, Option("--node-rank", min=0, help="This one's number, from 0.")] = 0,
    gpus: Annotated[int, Option("--num-gpus", min=0, help="GPUs that torch must see here.")] = 0,
    written_by: Annotated[str | None, Option("--written-by", help="Version that wrote the job.")] = None,
    patience: Annotated[float, Option("--patience", min=0, help="Seconds to wait for the others.")] = 900,
) -> None:
    """Check GPUs, versions and the shared storage; jobs of `hf-efficient submit` call it on every machine.

    Prints --resume where an earlier start of the job has begun to train.

    Example: hf-efficient check-node /mnt/runs/a --job 7 --attempt 0 --nodes 2 --node-rank 1 --num-gpus 8
    """
    from hf_efficient.jobs.nodes import Machine, answer, check_gpus, same_versions, started_before
    from hf_efficient.launch.checkpoints import EFFICIENCY
    from hf_efficient.run_dir.paths import RESOLVED
    from hf_efficient.version import __version__

    own = Machine(node_rank, socket.gethostname(), __version__)
    if node_rank >= nodes:
        raise SetupError(f"--node-rank: is {node_rank}, but --nodes {nodes} counts from 0 to {nodes - 1}.")
    check_gpus(gpus, own.host)
    machines = answer(output_dir, job, attempt, own, nodes, patience=patience)
    same_versions(machines)
    if written_by is not None and written_by != own.version:
        print(f"The job was written by hf_efficient {written_by}; {own.host} has {own.version}.", file=sys.stderr)
    if node_rank == 0:
        who = f"{nodes} machines" if nodes > 1 else own.host
        print(f"{who}: hf_efficient {own.version}, {counted(gpus, 'GPU')} asked for, {output_dir}", file=sys.stderr)
    if started_before(output_dir, job, attempt, output_dir / EFFICIENCY / RESOLVED):
        print("--resume")
