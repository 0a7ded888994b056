"""``hf-efficient train``: derive the accelerate command from the recipe, show it, run it; or write a cluster's job."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, write_text
from hf_efficient.errors import SetupError

if TYPE_CHECKING:
    from hf_efficient.jobs.job import Job, Target
    from hf_efficient.launch.machine import NsightTool
    from hf_efficient.recipe.schema import Recipe


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
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
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="TARGET", help="Print the job of a cluster instead: slurm, skypilot or kubernetes."
        ),
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="With --on: hand the job to the cluster.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="With --on: write the job to a file.")
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="FILE", help="With --on: the cluster, described in YAML.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="With --on: the kind of GPU: H100.")] = None,
    num_gpus: Annotated[
        int | None, typer.Option("--num-gpus", metavar="N", min=1, help="With --on: GPUs of each machine.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="LIMIT", help="Time limit: 90m, 12h, 2d.")] = None,
    shared: Annotated[
        str | None,
        typer.Option("--shared", metavar="PATH", help="Storage that all machines share; output_dir is on it."),
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
) -> None:
    """Fine-tune as a recipe says: here, or as a job of a cluster.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4

    On two machines of a Slurm cluster, printed first, then submitted:

    hf-efficient train RECIPE distributed.nodes=2 distributed.processes=auto --on slurm --num-gpus 8 --time 12h

    hf-efficient train RECIPE distributed.nodes=2 distributed.processes=auto --on slurm --cluster cluster.yaml --submit
    """
    from hf_efficient.launch.started import parse_flags
    from hf_efficient.recipe.load import load_recipe

    switches = _given({"--resume": resume, "--overwrite": overwrite, "--debug": debug})
    tail = [*(overrides or []), *switches]
    flags = parse_flags([recipe, *tail])
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
    job_flags = _given({**described, "--submit": submit, "--output": output, "--cluster": cluster})
    if on is not None or job_flags:
        here = {"--dry-run": dry_run, "--nsys": nsys, "--ncu": ncu, "--main-address": main_address}
        target = _target(on, job_flags, _given({**here, "--node-rank": node_rank > 0}))
        job = _job(target, recipe, resolved, switches, cluster, described)
        _write_job(target, job, resolved, output, submit)
        return
    tool = _nsight_tool(nsys, ncu)
    if tool is not None:
        from hf_efficient.launch.machine import nsight_overrides

        tail = [*tail, *nsight_overrides(resolved)]
        resolved = load_recipe(flags.recipe, parse_flags([recipe, *tail]).overrides)
    resolved, command, environment = _launch(recipe, resolved, tail, tool, (node_rank, main_address), dry_run=dry_run)
    if dry_run:
        return
    if preflight_only:
        prove_run(resolved, command, environment, debug=debug)
        return
    if tool is not None:
        from hf_efficient.cli.run_command import run_command

        raise SystemExit(run_command(command, resolved.output_dir, environment))
    raise SystemExit(run_proven(resolved, command, environment, debug=debug))


def _given(flags: Mapping[str, object]) -> list[str]:
    return [name for name, value in flags.items() if value not in (None, False)]


def _nsight_tool(nsys: bool, ncu: bool) -> NsightTool | None:
    if nsys and ncu:
        raise SetupError("--ncu: --nsys is given too, and a process has one profiler; leave one of them out")
    return "nsys" if nsys else "ncu" if ncu else None


def _launch(
    argument: str,
    recipe: Recipe,
    tail: Sequence[str],
    tool: NsightTool | None,
    node: tuple[int, str | None],
    *,
    dry_run: bool,
) -> tuple[Recipe, list[str], Mapping[str, str]]:
    """Print the command; refuse at once what the run would refuse after its imports. ``tail`` stands behind the recipe
    on the command line, ``tool`` is of Nsight. Returns the recipe with its accumulation, the command, and the variables
    to run it with."""
    from hf_efficient.facts.environment import accelerator_count, thread_count
    from hf_efficient.launch.checkpoints import check_layout
    from hf_efficient.launch.command import accelerate_command, layout_of, node_place, strategy_of
    from hf_efficient.launch.machine import (
        check_engine,
        check_installed,
        check_port,
        check_wrap_classes_without_weights,
        launch_environment,
        nsight_command,
    )
    from hf_efficient.launch.output import plan_output
    from hf_efficient.recipe.rules.distributed import with_accumulation

    devices = accelerator_count()
    automatic = recipe.distributed.processes == "auto"
    place = node_place(recipe, *node)
    layout = layout_of(recipe, device_count=devices if automatic else 0, cores=thread_count(), place=place)
    recipe = with_accumulation(recipe, layout.world_size)
    check_engine(recipe, layout, devices)
    command = accelerate_command(recipe, argument, tail, layout)
    if tool is not None:
        command = [*nsight_command(tool, recipe, has_gpu=devices > 0), *command]
    print(f"$ {shlex.join(command)}", flush=True)
    if not dry_run:
        check_wrap_classes_without_weights(recipe)
        if tool is not None:
            check_installed(tool)
        check_port(layout)
        checkpoint = plan_output(recipe).checkpoint
        if checkpoint is not None:
            check_layout(checkpoint, strategy_of(recipe, layout.world_size), layout.world_size)
    return recipe, command, launch_environment(layout)


def prove_run(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> None:
    """Check before the run that it would get through, and show what was checked; ``debug``: with what the launches
    write. Raises ``HfEfficientError``: the answer is no, or several machines would have to be started."""
    from rich.console import Console
    from rich.markup import escape

    from hf_efficient.preflight.launches import PreflightLaunch, check_run

    if recipe.distributed.nodes > 1:
        raise SetupError(
            f"--preflight-only: starts the processes of one machine, and distributed.nodes is "
            f"{recipe.distributed.nodes}. Write distributed.nodes=1 to prove the share of one."
        )
    console = Console(highlight=False)

    def tell(title: str, detail: str) -> None:
        console.print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}", soft_wrap=True)

    with console.status("starting ...") as status:  # shows on a terminal alone
        launch = PreflightLaunch(command, environment, debug, lambda stage: status.update(f"{stage} ..."))
        check_run(recipe, launch, tell)


def run_proven(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> int:
    """Run, and return the exit code of the run; where it wants a preflight check after reading its data, check and
    start again. Raises ``HfEfficientError``: the check failed, and the run was not started again."""
    from hf_efficient.cli.run_command import run_command
    from hf_efficient.launch.preflight_wanted import WISH_FILE, kept_preflight

    wanted = recipe.efficiency.preflight if recipe.distributed.nodes == 1 else False
    kept = kept_preflight(recipe) if wanted is True else None
    if wanted is True and (kept is None or not kept.passed):  # no need to ask the run
        prove_run(recipe, command, environment, debug=debug)
        return run_command(list(command), recipe.output_dir, environment)
    with tempfile.TemporaryDirectory() as folder:
        wish = Path(folder) / "wish"
        asking = {WISH_FILE: str(wish)} if wanted else {}
        code = run_command(list(command), recipe.output_dir, {**environment, **asking})
        if code or not wish.is_file():
            return code
        why = wish.read_text(encoding="utf-8")
    print(f"Proven first, since {why}:", flush=True)
    prove_run(recipe, command, environment, debug=debug)
    return run_command(list(command), recipe.output_dir, environment)


def _target(on: str | None, job_flags: Sequence[str], here: Sequence[str]) -> Target:
    from hf_efficient.jobs.job import target_of

    if on is None:
        raise SetupError(
            f"{job_flags[0]}: is about a cluster's job. Add --on slurm, --on skypilot or --on kubernetes, or leave it "
            "out."
        )
    if here:
        told = "is about a run on this machine, and --on asks for a cluster's; leave one out."
        raise SetupError(f"{here[0]}: {told}")
    return target_of(on)


def _job(
    target: Target,
    argument: str,
    recipe: Recipe,
    switches: Sequence[str],
    cluster: Path | None,
    described: Mapping[str, str | None],
) -> Job:
    """``described`` are flags that stand for a key of the cluster's description."""
    from hf_efficient.jobs.cluster import load_cluster
    from hf_efficient.jobs.job import job_of

    return job_of(
        target,
        recipe,
        load_cluster(cluster, dict(described)),
        source=argument,
        directory=str(Path.cwd()),
        switch=next((one for one in switches if one != "--debug"), ""),
        debug="--debug" in switches,
    )


def _write_job(target: Target, job: Job, recipe: Recipe, output: Path | None, submits: bool) -> None:
    """Print the job, write it or submit it; how to submit it goes to standard error."""
    from hf_efficient.jobs.targets import TEXTS, check_program, submit, submit_command
    from hf_efficient.launch.output import plan_output

    text = TEXTS[target](job)
    if submits:
        check_program(target)
        if target == "slurm":
            plan_output(recipe)  # the login machine sees the storage: refuse now, not after days in the queue
    if output is not None:
        write_text("--output", output, text)
    elif not submits:
        print(text, end="")
    if submits:
        raise SystemExit(submit(target, job, text, output))
    if output is not None:
        command = shlex.join(submit_command(target, job, str(output)))
        print(f"{output} is written. Submit it by: {command}", file=sys.stderr)
    if job.gpus is None:
        print("No GPUs are asked for; --num-gpus N does.", file=sys.stderr)
