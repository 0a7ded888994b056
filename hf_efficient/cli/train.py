"""``hf-efficient train``: derive the accelerate command from the recipe, show it, run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.train_on import (
    AccountOption,
    ClusterFlags,
    ClusterOption,
    GpusOption,
    ImageOption,
    InfraOption,
    NamespaceOption,
    OnOption,
    OutputOption,
    PartitionOption,
    SharedOption,
    SubmitOption,
    TimeOption,
    train_on,
)

if TYPE_CHECKING:
    from hf_efficient.launch.nsight import NsightTool

__all__ = ["train"]


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
    from hf_efficient.cli.train_preflight import prove_run, run_proven
    from hf_efficient.hardware.devices import accelerator_count, thread_count
    from hf_efficient.launch.checkpoint_layout import check_layout
    from hf_efficient.launch.command import accelerate_command, printable
    from hf_efficient.launch.engines.checks import check_engine, check_port
    from hf_efficient.launch.engines.interface import launch_environment
    from hf_efficient.launch.engines.layout import layout_of, strategy_of
    from hf_efficient.launch.engines.place import node_place
    from hf_efficient.launch.flags import parse_flags
    from hf_efficient.launch.nsight import check_installed, nsight_command, nsight_overrides
    from hf_efficient.launch.output import plan_output
    from hf_efficient.launch.wrap_classes import check_wrap_classes_without_weights
    from hf_efficient.recipe.global_batch import with_accumulation
    from hf_efficient.recipe.load import load_recipe

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
