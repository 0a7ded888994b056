"""``hf-efficient train``: derive the accelerate command from the recipe, show it, run it; ``run``: a training script of
the user's own, unchanged, with account, page and diagnosis."""

from __future__ import annotations

import atexit
import functools
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hf_efficient.cli.output import NumGpus, Overrides, Overwrite, RecipeArgument, Resume, check_switches, with_num_gpus
from hf_efficient.errors import SetupError
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.reporting.terminal import Console, show

if TYPE_CHECKING:
    from hf_efficient.launch.machine import NsightTool
    from hf_efficient.launch.restart import Starts
    from hf_efficient.launch.script import Instrumented
    from hf_efficient.recipe.schema import Recipe

_of_machines = partial(Option, rich_help_panel="Several machines")
_profiler = partial(Option, rich_help_panel="Profilers")


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    keep_going: Annotated[
        bool, Option("--keep-going", help="After a crash, start again, until 5 starts bring no new checkpoint.")
    ] = False,
    preflight_only: Annotated[
        bool, Option("--preflight-only", help="Run the preflight check and stop; exit code 0: passed, 1: not.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the command and stop.")] = False,
    num_gpus: NumGpus = None,
    node_rank: Annotated[int, _of_machines(min=0, help="Which of `distributed.nodes` machines this one is.")] = 0,
    main_address: Annotated[
        str | None, _of_machines(metavar="HOST[:PORT]", help="Where the others reach machine 0.")
    ] = None,
    nsys: Annotated[bool, _profiler("--nsys", help="Run under Nsight Systems: a timeline of some steps.")] = False,
    ncu: Annotated[bool, _profiler("--ncu", help="Run under Nsight Compute: the kernels of one step.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show tracebacks and the libraries' messages.")] = False,
) -> None:
    """Fine-tune as a recipe says, on this machine. For a cluster: `hf-efficient submit`.

    Example: hf-efficient train quickstart/qlora train.learning_rate=1e-4
    """
    switches = check_switches(resume=resume, overwrite=overwrite) + ["--debug"] * debug
    tail = [*with_num_gpus(overrides or [], num_gpus), *switches]
    if nsys and ncu:
        raise SetupError("--ncu: --nsys is given too. Leave one of them out.")
    tool: NsightTool | None = "nsys" if nsys else "ncu" if ncu else None
    if tool is not None and keep_going:
        raise SetupError("--keep-going: a profiler's run is given too (--nsys, --ncu). Leave one of them out.")
    resolved, command, environment = _launch(recipe, tail, tool, (node_rank, main_address), dry_run=dry_run)
    if dry_run:
        return
    if preflight_only:
        run_preflight(resolved, command, environment, debug=debug)
        return
    if tool is not None:
        from hf_efficient.cli.run_command import run_command

        raise SystemExit(run_command(command, resolved.output_dir, environment, resolved.faults.hang_minutes))
    from hf_efficient.launch.restart import starts_of

    starts = starts_of(resolved, command, keep_going=keep_going)
    code = run_checked(resolved, command, environment, debug=debug)
    raise SystemExit(_started_again(code, starts, resolved, recipe, tail))


def _started_again(code: int, starts: Starts, resolved: Recipe, recipe: str, tail: Sequence[str]) -> int:
    """The exit code of the last start; after crashes the run is started from its last checkpoint."""
    from hf_efficient.cli.run_command import run_command
    from hf_efficient.launch.restart import next_tail

    while (pause := starts.pause_after(code)) is not None:
        print(f"{starts.words(pause)}.", file=sys.stderr, flush=True)
        time.sleep(pause)
        again = next_tail(tail, resolved, starts.step)
        resumed, command, environment = _launch(recipe, again, None, (0, None), dry_run=False)
        code = run_command(command, resumed.output_dir, environment, resumed.faults.hang_minutes)
    return code


def _resolved(argument: str, tail: Sequence[str]) -> Recipe:
    from hf_efficient.launch.started import parse_flags
    from hf_efficient.recipe.load import load_recipe

    flags = parse_flags([argument, *tail])
    return load_recipe(flags.recipe, flags.overrides)


def _launch(
    argument: str, tail: Sequence[str], tool: NsightTool | None, node: tuple[int, str | None], *, dry_run: bool
) -> tuple[Recipe, list[str], Mapping[str, str]]:
    """Refuse at once what the run would refuse after its imports; only ``dry_run`` prints the command here. ``tail``
    follows the recipe on the command line. Returns the recipe with its accumulation, the command, and the variables to
    run it with."""
    from hf_efficient.facts.environment import accelerator_count, thread_count
    from hf_efficient.launch import machine
    from hf_efficient.launch.checkpoints import check_layout
    from hf_efficient.launch.command import accelerate_command, layout_of, node_place, strategy_of
    from hf_efficient.launch.output import plan_output
    from hf_efficient.launch.started import COMMAND
    from hf_efficient.model.source import resolve_model_source
    from hf_efficient.recipe.load import check_data_files
    from hf_efficient.recipe.rules.distributed import with_accumulation

    recipe = _resolved(argument, tail)
    if tool is not None:
        tail = [*tail, *machine.nsight_overrides(recipe)]
        recipe = _resolved(argument, tail)
    devices = accelerator_count()
    automatic = recipe.distributed.processes == "auto"
    place = node_place(recipe, *node)
    layout = layout_of(recipe, device_count=devices if automatic else 0, cores=thread_count(), place=place)
    recipe = with_accumulation(recipe, layout.world_size)
    machine.check_engine(recipe, layout, devices)
    command = accelerate_command(recipe, argument, tail, layout)
    if tool is not None:
        command = [*machine.nsight_command(tool, recipe, has_gpu=devices > 0), *command]
    if dry_run:
        print(f"$ {shlex.join(command)}", flush=True)
    else:
        if tool is not None:
            machine.check_installed(tool)
        check_data_files(recipe)  # a wrong recipe comes before a taken directory
        resolve_model_source(recipe.model)
        checkpoint = plan_output(recipe).checkpoint
        if checkpoint is not None:
            check_layout(checkpoint, recipe, strategy_of(recipe, layout.world_size), layout.world_size)
    return recipe, command, {**machine.launch_environment(layout), COMMAND: shlex.join(command)}


def run_preflight(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> None:
    """Run the preflight check, and show what was checked; ``debug``: with the output of the launches. Raises
    ``HfEfficientError``: it failed, or the recipe is for several machines."""
    from rich.markup import escape

    from hf_efficient.preflight.launches import PreflightLaunch, check_run

    if recipe.distributed.nodes > 1:
        raise SetupError(
            f"--preflight-only: starts the processes of one machine, and distributed.nodes is "
            f"{recipe.distributed.nodes}. Write distributed.nodes=1 to check one machine."
        )
    if OBJECTIVES[recipe.objective].generates:
        raise SetupError(
            f"--preflight-only: knows no longest batch of `objective: {recipe.objective}`, whose completions are not "
            "there yet. Train with train.max_steps=2."
        )
    console = Console(highlight=False)

    def show_row(title: str, detail: str) -> None:
        console.print(f"[bold]{escape(title):<12}[/bold]{escape(detail)}", soft_wrap=True)

    with console.status("starting ...") as status:  # shows on a terminal alone
        launch = PreflightLaunch(command, environment, debug, lambda stage: status.update(f"{stage} ..."))
        check_run(recipe, launch, show_row)


def run_checked(recipe: Recipe, command: Sequence[str], environment: Mapping[str, str], *, debug: bool) -> int:
    """Run, and return the exit code of the run; where it asks for a preflight check after reading its data, check and
    start again. Raises ``HfEfficientError``: the check failed, and the run was not started again."""
    from hf_efficient.cli.run_command import run_command
    from hf_efficient.launch.preflight_wanted import WISH_FILE, kept_preflight

    run = functools.partial(run_command, list(command), recipe.output_dir, hang_minutes=recipe.faults.hang_minutes)
    wanted = recipe.efficiency.preflight if recipe.distributed.nodes == 1 else False
    kept = kept_preflight(recipe) if wanted is True else None
    if wanted is True and (kept is None or not kept.passed):  # no need to ask the run
        run_preflight(recipe, command, environment, debug=debug)
        return run(environment)
    with tempfile.TemporaryDirectory() as folder:
        wish = Path(folder) / "wish"
        asking = {WISH_FILE: str(wish)} if wanted else {}
        code = run({**environment, **asking})
        if code or not wish.is_file():
            return code
        why = wish.read_text(encoding="utf-8")
    print(f"Preflight check first, because {why}:", flush=True)
    run_preflight(recipe, command, environment, debug=debug)
    return run(environment)


run = typer.Typer(add_completion=False, rich_markup_mode="rich")


@run.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def _run(
    target: Annotated[str, Argument(metavar="SCRIPT", help="A Python file; with -m a module.")],
    arguments: Annotated[list[str] | None, Argument(metavar="ARGS", help="The script's own arguments.")] = None,
    module: Annotated[bool, Option("-m", help="SCRIPT is a module, as in `python -m`.")] = False,
) -> None:
    """Run a training script as `python SCRIPT ARGS` does, and show where its time, memory and money went.

    Each Trainer of transformers or TRL in it writes its account and page to OUTPUT_DIR/efficiency. The script stays as
    it is; its exit code is that of this command. What this command adds is printed on standard error, at the end.

    On several GPUs: torchrun --no-python --nproc-per-node 8 hf-efficient run train.py ARGS

    Example: hf-efficient run train.py --learning_rate 1e-4
    """
    from hf_efficient.launch.script import Instrumented, check_target, run_script

    check_target(target, module=module)
    instrumented = Instrumented()
    atexit.register(_show, instrumented, target)  # before the account's own, and so called after it
    instrumented.begin()
    run_script(target, arguments or [], module=module)


def _show(instrumented: Instrumented, target: str) -> None:
    if not instrumented.trainers:
        print(f"{target} built no Trainer of transformers or TRL: nothing was recorded.", file=sys.stderr)
    if not instrumented.finished:
        return
    from hf_efficient.reporting.console import headline, short_findings
    from hf_efficient.reporting.finish_run import REPORT_HTML

    for directory, run in instrumented.finished.items():
        found = [] if run.diagnosis is None else short_findings(run.diagnosis)
        show(["", *headline(run.account), *found], file=sys.stderr)
        if (directory / REPORT_HTML).is_file():
            print(f"The page is {directory / REPORT_HTML}", file=sys.stderr)
        name = shlex.quote(str(directory))
        print(f"More: hf-efficient report {name}; hf-efficient diagnose {name}", file=sys.stderr)
