"""``hf-efficient plan``: memory, time and cost of a recipe before it runs."""

from __future__ import annotations

import atexit
import dataclasses
import gc
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from hf_efficient.cli import output as shared
from hf_efficient.errors import SetupError
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.reporting.terminal import show
from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.recipe.schema import Recipe
    from hf_efficient.records.plan import Plan

_change = partial(Option, rich_help_panel="Changes of the recipe")
_output = partial(Option, rich_help_panel="Output")


def plan(
    recipe: shared.RecipeArgument,
    overrides: shared.Overrides = None,
    gpu: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="The kind of GPU; repeat for several; default: all known. cpu is this machine's.",
            autocompletion=shared.gpu_names,
        ),
    ] = None,
    num_gpus: shared.NumGpus = None,
    advise: Annotated[
        bool | None,
        _change(
            "--advise/--no-advise",
            help="Simulate changes of the recipe and rank them, for one --gpu; default: where it does not fit that.",
        ),
    ] = None,
    fix: Annotated[
        Path | None, _change(metavar="OUT.yaml", help="Write a recipe that extends this one and fits the one --gpu.")
    ] = None,
    largest: Annotated[
        bool, _change("--largest", help="Find the largest micro-batch and the longest rows that fit the one --gpu.")
    ] = False,
    export: Annotated[bool, _output("--export", help="The sizes of the trained model's exports too.")] = False,
    html: Annotated[Path | None, _output(metavar="FILE", help="Write the plan as a page with plots.")] = None,
    read_data: Annotated[
        bool, Option("--data/--no-data", help="Read the data that this machine has, or assume full rows.")
    ] = True,
    notes: Annotated[
        bool, _output("--notes", help="Print the largest tensors, all assumptions, and what spot markets change.")
    ] = False,
    as_json: Annotated[bool, _output("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict the memory, time and cost of a recipe: no GPU, no weights, no network.

    The recipe's own training loop runs two steps on tensors that have shapes and no values. Exit code 1 where it fits
    none of the accelerators, and could not be made to by --fix.

    Prices and accelerators of your own, in prices.yaml and accelerators.yaml, are read from the folder that the
    variable HF_EFFICIENT_FACTS names, else from ~/.config/hf_efficient/facts.

    Example: hf-efficient plan llama3.1-8b/qlora --gpu "RTX 4090" --gpu A10 train.max_length=4096
    """
    from hf_efficient.recipe.load import load_recipe

    overrides = shared.with_num_gpus(overrides or [], num_gpus)
    loaded = load_recipe(recipe, overrides)
    names = _checked_names(gpu)
    is_one = names is not None and len(names) == 1 and names != ["cpu"]
    asked = {"advise": bool(advise), "fix": fix is not None, "largest": largest}
    if not is_one:
        _refuse(asked, "is for one kind of GPU. Name it once: --gpu NAME, for instance --gpu A10.")
    if OBJECTIVES[loaded.objective].generates:
        other = "train.per_device_train_batch_size=4 train.max_completion_length=128"
        why = f"knows no changes for `objective: {loaded.objective}`. Plan it again with other values, such as {other}."
        _refuse(asked, why)
        advise = False
    if fix is not None:
        from hf_efficient.recipe.load import check_new_file

        check_new_file(fix, "--fix")
    shared.check_file("--html", html, shared.PAGE)
    with lean_imports():
        from hf_efficient.planning.plan import plan as make_plan
    planned = make_plan(loaded, names, read_data=read_data)
    from hf_efficient.reporting.plan import advice_renderables, largest_renderables, show_plan

    if not as_json:  # each part as soon as it is there
        show_plan(planned, notes=notes)
    fits = any(one.fits for one in planned.gpus)
    if is_one and largest:
        from hf_efficient.planning.advice import with_largest

        planned = with_largest(loaded, planned, lambda said: print(f"--largest: {said}", file=sys.stderr, flush=True))
        if planned.largest is not None and not as_json:
            show(largest_renderables(planned.largest, planned.micro_batch_rows, planned.row_tokens))
    if is_one and ((fix is not None and not fits) or (not fits if advise is None else advise)):
        from hf_efficient.planning.advice import with_advice

        planned = with_advice(loaded, planned)
        if planned.advice is not None and not as_json:
            show(advice_renderables(planned.advice))
    sizes: dict[str, dict[str, int]] = {}
    if export:
        from hf_efficient.export.export import section_sizes
        from hf_efficient.reporting.trained_model import sizes_lines

        sizes = {"export_bytes": section_sizes(loaded.model)}
        if not as_json:
            show(["", "Exports of the trained model:", *sizes_lines(sizes["export_bytes"])])
    if as_json:
        shared.print_json(dataclasses.asdict(planned) | sizes)
    if html is not None:
        asked = {"advise": planned.advice is not None, "largest": largest, "no-data": not read_data}
        flags = [part for name in names or () for part in ("--gpu", name)]
        flags += [f"--{name}" for name, wanted in asked.items() if wanted]
        again = shlex.join(["hf-efficient", "plan", recipe, *overrides, *flags, "--html", str(html)])
        from hf_efficient.reporting.html.compare_page import plan_page

        shared.write_page(html, html, lambda: plan_page(planned, again), sys.stderr if as_json else None)
    if fix is not None:
        fits = _write_fix(loaded, planned, fix)
    if not fits:
        raise typer.Exit(1)


def _checked_names(gpu: list[str] | None) -> list[str] | None:
    """The accelerators by their own names, each once; a wrong name is reported before torch is loaded."""
    if gpu is None:
        return None
    from hf_efficient.facts.tables import CPU, accelerator, names_cpu

    try:
        if names_cpu(gpu):
            return [CPU]
    except SetupError as error:
        raise SetupError(f"--gpu: {error}") from error
    try:
        return list(dict.fromkeys(accelerator(name).name for name in gpu))
    except SetupError as error:
        raise SetupError(f"--gpu: {error} Or write cpu, for this machine's.") from error


def _refuse(asked: Mapping[str, bool], why: str) -> None:
    for name, wanted in asked.items():
        if wanted:
            raise SetupError(f"--{name}: {why}")


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import the libraries of a plan without torch's compiler and garbage collection; nothing where torch is loaded.
    Measured on two cores (torch 2.13, bitsandbytes 0.50): torch's compiler, which bitsandbytes loads, 0.5 s; garbage
    collection of half a million objects, 1 s while they load and 0.5 s at the end."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
    atexit.register(gc.freeze)


def _write_fix(recipe: Recipe, planned: Plan, path: Path) -> bool:
    """Write the cheapest change as a recipe that extends this one; whether the recipe fits, or the one written."""
    from hf_efficient.planning.advice import cheapest_fix
    from hf_efficient.recipe.load import fixed_recipe, write_new_file

    name = planned.gpus[0].name
    if planned.gpus[0].fits:
        print(f"--fix: it fits {name} as it is; nothing is written.", file=sys.stderr)
        return True
    overrides = cheapest_fix(planned)
    if overrides is None:
        print(f"--fix: no change makes it fit {name}; nothing is written.", file=sys.stderr)
        return False
    remark = f"Fits {name} by hf-efficient plan {__version__}."
    write_new_file(path, fixed_recipe(recipe, overrides, path, remark), "--fix")
    print(f"--fix: {path} fits {name}. Run it: hf-efficient train {shlex.quote(str(path))}", file=sys.stderr)
    return True
