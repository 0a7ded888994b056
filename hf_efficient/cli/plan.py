"""``hf-efficient plan``: memory, time and cost of a recipe before it runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.lean_process import lean_imports
from hf_efficient.cli.num_gpus import with_num_gpus
from hf_efficient.cli.page_file import check_page_file
from hf_efficient.cli.plan_fix import write_fix
from hf_efficient.cli.plan_output import PlanOutput
from hf_efficient.errors import SetupError

if TYPE_CHECKING:
    from hf_efficient.recipe.schema import Recipe
    from hf_efficient.records.plan import Plan

__all__ = ["plan"]


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An accelerator, again for more; default: all known.")
    ] = None,
    num_gpus: Annotated[
        int | None,
        typer.Option("--num-gpus", metavar="N", help="GPUs of one machine, as distributed.processes=N."),
    ] = None,
    advise: Annotated[
        bool | None,
        typer.Option(
            "--advise/--no-advise",
            help="Rehearse changes of the recipe and rank them, for one --gpu; default: where it does not fit that.",
        ),
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(metavar="OUT.yaml", help="Write a recipe that extends this one and fits the one --gpu."),
    ] = None,
    largest: Annotated[
        bool,
        typer.Option("--largest", help="Find the largest micro-batch and the longest rows that fit the one --gpu."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as a page with plots, in one file.")
    ] = None,
    read_data: Annotated[
        bool,
        typer.Option(
            "--data/--no-data",
            help="Read the recipe's data where they are on this machine, or take every row to be as long as may be.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict the memory, time and cost of a recipe: no GPU, no weights, no network.

    The recipe's own training loop runs two steps on tensors that have shapes and no values. Exit code 1 where it fits
    none of the accelerators, and could not be made to by --fix.

    Prices and accelerators of your own, in prices.yaml and accelerators.yaml, are read from the folder that the
    variable HF_EFFICIENT_FACTS names, else from ~/.config/hf_efficient/facts.

    Example: hf-efficient plan llama3.1-8b/qlora --gpu "RTX 4090" --gpu A10 train.max_length=4096
    """
    from hf_efficient.recipe.load import load_recipe

    loaded = load_recipe(recipe, with_num_gpus(overrides or [], num_gpus))
    names = _checked_names(gpu)
    if names is None or len(names) != 1:
        _need_one_gpu(advise=bool(advise), fix=fix is not None, largest=largest)
    if fix is not None:
        from hf_efficient.recipe.new_file import check_new_file

        check_new_file(fix, "--fix")
    if html is not None:
        check_page_file(html)
    planned = _planned(loaded, names, read_data=read_data)
    show = PlanOutput(as_json)
    show.plan(planned)
    fits = any(one.fits for one in planned.gpus)
    if names is not None and len(names) == 1:
        planned = _beyond(loaded, planned, show, advise=_wanted(advise, fits, fix), largest=largest)
    show.end(planned)
    if html is not None:
        asked = {"advise": planned.advice is not None, "largest": largest, "no-data": not read_data}
        again = _again(recipe, with_num_gpus(overrides or [], num_gpus), names, html, **asked)
        show.page(planned, html, again)
    if fix is not None:
        fits = write_fix(loaded, planned, fix)
    if not fits:
        raise typer.Exit(1)


def _again(recipe: str, overrides: list[str], names: list[str] | None, html: Path, **asked: bool) -> str:
    """The command that makes the page again."""
    flags = [part for name in names or () for part in ("--gpu", name)]
    flags += [f"--{name}" for name, wanted in asked.items() if wanted]
    return shlex.join(["hf-efficient", "plan", recipe, *overrides, *flags, "--html", str(html)])


def _checked_names(gpu: list[str] | None) -> list[str] | None:
    """The accelerators by their own names, each once; a wrong name is told before torch is loaded."""
    if gpu is None:
        return None
    from hf_efficient.hardware.accelerators import accelerator

    return list(dict.fromkeys(accelerator(name).name for name in gpu))


def _need_one_gpu(**asked: bool) -> None:
    for name, wanted in asked.items():
        if wanted:
            raise SetupError(f"--{name}: is for one accelerator. Name it once: --gpu NAME, for instance --gpu A10.")


def _wanted(advise: bool | None, fits: bool, fix: Path | None) -> bool:
    if fix is not None:
        return not fits or bool(advise)
    return not fits if advise is None else advise


def _planned(recipe: Recipe, names: list[str] | None, *, read_data: bool) -> Plan:
    from hf_efficient.hardware.quiet import quieten_libraries

    quieten_libraries(debug=False)
    with lean_imports():
        from hf_efficient.planning.plan import plan as make_plan

    return make_plan(recipe, names, read_data=read_data)


def _beyond(recipe: Recipe, planned: Plan, show: PlanOutput, *, advise: bool, largest: bool) -> Plan:
    from hf_efficient.planning.advised import with_advice, with_largest

    if largest:
        planned = with_largest(recipe, planned)
        show.largest(planned)
    if advise:
        planned = with_advice(recipe, planned)
        show.advice(planned)
    return planned
