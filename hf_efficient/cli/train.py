"""``hf-efficient train --on``: a recipe as a job of a cluster, printed, written or submitted.

``hf-efficient train``: the proof before the run, and the run.

``hf-efficient train``: derive the accelerate command from the recipe, show it, run it.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hf_efficient.jobs.job import Job, Target
    from hf_efficient.launch.machine import NsightTool
    from hf_efficient.recipe.schema import Recipe

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
    from hf_efficient.jobs.cluster import load_cluster
    from hf_efficient.jobs.job import job_of
    from hf_efficient.jobs.targets import check_program, job_text, submit
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
    from hf_efficient.errors import SetupError
    from hf_efficient.jobs.job import target_of

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
    from hf_efficient.jobs.targets import submit_command

    if file is not None:
        command = shlex.join(submit_command(target, job, str(file)))
        print(f"{file} is written. Submit it by: {command}", file=sys.stderr)
    if job.gpus is None:
        print("No GPUs are asked for; --gpus TYPE:COUNT does.", file=sys.stderr)


def prove_run(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> None:
    """Prove it, and show what was proven.

    Args:
        recipe: of the run.
        command: that starts it.
        environment: beside this process's own.
        debug: show what the launches write.

    Raises:
        HfEfficientError: the answer is no, or several machines would have to be started.
    """
    from rich.console import Console
    from rich.markup import escape

    from hf_efficient.errors import SetupError
    from hf_efficient.preflight.launches import ProofLaunch, prove

    if recipe.distributed.nodes > 1:
        raise SetupError(
            f"--preflight-only: starts the processes of one machine, and distributed.nodes is "
            f"{recipe.distributed.nodes}. Write distributed.nodes=1 to prove the share of one."
        )
    console = Console(highlight=False)

    def tell(title: str, detail: str) -> None:
        console.print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}", soft_wrap=True)

    with console.status("starting ...") as status:  # shows on a terminal alone
        launch = ProofLaunch(command, environment, debug, lambda stage: status.update(f"{stage} ..."))
        prove(recipe, launch, tell)


def run_proven(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> int:
    """Run; where the run wants a proof first, which it knows once it has read its data: prove it, and start it again.

    Args:
        recipe: of the run.
        command: that starts it.
        environment: beside this process's own.
        debug: show what the launches of a proof write.

    Returns:
        The exit code of the run.

    Raises:
        HfEfficientError: the proof failed, and the run was not started again.
    """
    from hf_efficient.cli.run_command import run_command
    from hf_efficient.launch.proven import WISH_FILE, kept_preflight

    wanted = recipe.efficiency.preflight if recipe.distributed.nodes == 1 else False
    kept = kept_preflight(recipe) if wanted is True else None
    if wanted is True and (kept is None or not kept.passed):  # no need to ask the run
        prove_run(recipe, command, environment, debug=debug)
        return run_command(list(command), recipe.output_dir, environment)
    with tempfile.TemporaryDirectory() as folder:
        wish = Path(folder) / "wish"
        code = run_command(
            list(command), recipe.output_dir, {**environment, **({WISH_FILE: str(wish)} if wanted else {})}
        )
        if code or not wish.is_file():
            return code
        why = wish.read_text(encoding="utf-8")
    print(f"Proven first, since {why}:", flush=True)
    prove_run(recipe, command, environment, debug=debug)
    return run_command(list(command), recipe.output_dir, environment)


def train(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in output_dir.")] = False,
    preflight_only: Annotated[
        bool, typer.Option("--preflight-only", help="Prove that the run would get through, and stop: 0 yes, 1 no.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")] = False,
    node_rank: Annotated[
        int, typer.Option("--node-rank", min=0, help="Which of `distributed.nodes` machines this one is, from 0.")
    ] = 0,
    main_address: Annotated[
        str | None, typer.Option("--main-address", metavar="HOST[:PORT]", help="Machine 0, as all the others reach it.")
    ] = None,
    nsys: Annotated[bool, typer.Option("--nsys", help="Run under Nsight Systems: some steps, on a timeline.")] = False,
    ncu: Annotated[bool, typer.Option("--ncu", help="Run under Nsight Compute: one step's kernels.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the libraries' messages.")] = False,
    on: OnOption = None,
    submit: SubmitOption = False,
    output: OutputOption = None,
    cluster: ClusterOption = None,
    gpus: GpusOption = None,
    time: TimeOption = None,
    shared: SharedOption = None,
    partition: PartitionOption = None,
    account: AccountOption = None,
    image: ImageOption = None,
    infra: InfraOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Fine-tune as a recipe says: here, or as a job of a cluster.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4

    On two machines of a Slurm cluster, printed first, then submitted:

    hf-efficient train RECIPE distributed.nodes=2 distributed.processes=auto --on slurm --gpus 8 --time 12h

    hf-efficient train RECIPE distributed.nodes=2 distributed.processes=auto --on slurm --cluster cluster.yaml --submit
    """
    from hf_efficient.cli.run_command import run_command
    from hf_efficient.facts.environment import accelerator_count, thread_count
    from hf_efficient.launch.checkpoints import check_layout
    from hf_efficient.launch.command import accelerate_command, layout_of, node_place, printable, strategy_of
    from hf_efficient.launch.machine import (
        check_engine,
        check_installed,
        check_port,
        check_wrap_classes_without_weights,
        launch_environment,
        nsight_command,
        nsight_overrides,
    )
    from hf_efficient.launch.output import plan_output
    from hf_efficient.launch.started import parse_flags
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.rules.distributed import with_accumulation

    switches = [name for name, on in (("--resume", resume), ("--overwrite", overwrite), ("--debug", debug)) if on]
    tail = [*(overrides or []), *switches]
    flags = parse_flags([recipe, *tail])
    resolved = load_recipe(flags.recipe, flags.overrides)
    asked = ClusterFlags(on, submit, output, cluster, gpus, time, shared, partition, account, image, infra, namespace)
    if asked.any():
        others = {"--dry-run": dry_run, "--nsys": nsys, "--ncu": ncu}
        places = {"--node-rank": node_rank > 0, "--main-address": main_address is not None}
        train_on(recipe, resolved, asked, switches, others={**others, **places})
        return
    tool = _nsight_tool(nsys, ncu)
    if tool is not None:
        tail = [*tail, *nsight_overrides(resolved)]
        resolved = load_recipe(flags.recipe, parse_flags([recipe, *tail]).overrides)
    automatic = resolved.distributed.processes == "auto"
    devices = accelerator_count()
    place = node_place(resolved, node_rank, main_address)
    layout = layout_of(resolved, device_count=devices if automatic else 0, cores=thread_count(), place=place)
    resolved = with_accumulation(resolved, layout.world_size)
    check_engine(resolved, layout, devices)
    command = accelerate_command(resolved, recipe, tail, layout)
    if tool is not None:
        command = [*nsight_command(tool, resolved, has_gpu=accelerator_count() > 0), *command]
    print(f"$ {printable(command)}", flush=True)
    if dry_run:
        return
    check_wrap_classes_without_weights(resolved)
    if tool is not None:
        check_installed(tool)
    check_port(layout)
    checkpoint = plan_output(resolved).checkpoint  # refuses in a moment what the run would refuse after its imports
    if checkpoint is not None:
        check_layout(checkpoint, strategy_of(resolved, layout.world_size), layout.world_size)
    environment = launch_environment(layout)
    if preflight_only:
        prove_run(resolved, command, environment, debug=debug)
        return
    if tool is not None:
        raise SystemExit(run_command(command, resolved.output_dir, environment))
    raise SystemExit(run_proven(resolved, command, environment, debug=debug))


def _nsight_tool(nsys: bool, ncu: bool) -> NsightTool | None:
    """Which of the two was asked for.

    Raises:
        SetupError: both.
    """
    from hf_efficient.errors import SetupError

    if nsys and ncu:
        raise SetupError("--ncu: --nsys is given too, and a process has one profiler; leave one of them out")
    return "nsys" if nsys else "ncu" if ncu else None
