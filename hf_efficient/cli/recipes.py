"""``hf-efficient recipes``: the shipped ones, and any recipe resolved, explained, or as it is launched; ``schema``."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, print_json, write_text

if TYPE_CHECKING:
    from rich.table import Table

    from hf_efficient.recipe.files import ShippedPlan, ShippedRecipe
    from hf_efficient.recipe.schema import Origin, Recipe

recipes = typer.Typer(add_completion=False, rich_markup_mode="rich")
_Method = Literal["lora", "dora", "rslora", "qlora", "full"]


@recipes.callback(invoke_without_command=True)
def _list(
    context: typer.Context,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only models with this in their name: 8b.")] = None,
    gpu_memory: Annotated[
        float | None, typer.Option(metavar="GB", min=1, help="Only what fits GPUs with this memory: 24.")
    ] = None,
    method: Annotated[_Method | None, typer.Option(help="Only this kind of training.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the shipped recipes with the memory, GPU and speed that their plans predict; show one resolved.

    Example: hf-efficient recipes --model llama --gpu-memory 24 --method qlora

    Example: hf-efficient recipes show quickstart/qlora --explain
    """
    if context.invoked_subcommand is not None:
        return
    from hf_efficient.facts.accelerators import usable_gib
    from hf_efficient.recipe.files import list_recipes, shipped_plans

    plans = shipped_plans()
    usable = None if gpu_memory is None else usable_gib(gpu_memory)
    found = [
        (one, plans.get(one.name))
        for one in list_recipes()
        if _matches(one.name, plans.get(one.name), model, None if usable is None else usable[1], method)
    ]
    if as_json:
        print_json([_as_json(one, plan) for one, plan in found])
    elif found:
        _show_list(found, gpu_memory, usable)
    else:
        print("No shipped recipe matches. Leave out a filter.", file=sys.stderr)
    if not found:
        raise typer.Exit(1)


def _matches(
    name: str, plan: ShippedPlan | None, model: str | None, usable: float | None, method: _Method | None
) -> bool:
    if model is not None:
        full = "" if plan is None else plan.model
        names = (full,) if "/" in model else (name, full.rpartition("/")[2])
        if not any(_letters(model) in _letters(one) for one in names):
            return False
    if plan is None:
        return usable is None and method is None
    fits = usable is None or plan.needed_gib <= usable
    return fits and (method is None or plan.method.lower().partition(",")[0] == method)


def _letters(text: str) -> str:
    return "".join(one for one in text.lower() if one.isalnum())


def _as_json(recipe: ShippedRecipe, plan: ShippedPlan | None) -> dict[str, Any]:
    own = {"name": recipe.name, "description": recipe.description, "path": str(recipe.path)}
    held = {} if plan is None else {**dataclasses.asdict(plan), "estimated": True}
    return own | {key: value for key, value in held.items() if key not in ("recipe", "fingerprint")}


def _show_list(
    found: Sequence[tuple[ShippedRecipe, ShippedPlan | None]],
    gpu_memory: float | None,
    usable: tuple[float, float] | None,
) -> None:
    from hf_efficient.reporting.terminal import show, table

    listed = table("recipe", "GiB", "GPU", "tokens/s", "licence", words=(0, 2, 4))
    for column in listed.columns:
        column.no_wrap = True
    for one, plan in found:
        listed.add_row(one.name, *_figures(plan))
    remarks = [
        "",
        "~ estimated by `hf-efficient plan RECIPE --no-data`: GiB of each GPU, tokens/s of all, on the cheapest GPU "
        "per token. The licence is the model's.",
    ]
    if any(plan is not None and plan.gated for _, plan in found):
        remarks.append("* gated: accept the licence on the hub, and log in (`hf auth login`).")
    if gpu_memory is not None and usable is not None and usable[0] < usable[1]:
        remarks.append(
            f"GPUs with {gpu_memory:g} GB have {usable[0]:.1f} to {usable[1]:.1f} GiB usable. Check yours: "
            "`hf-efficient plan RECIPE --gpu NAME`."
        )
    show([listed, *remarks])


def _figures(plan: ShippedPlan | None) -> list[str]:
    if plan is None:
        return ["n/a"] * 4
    gpu = f"{plan.gpus} x {plan.gpu}" if plan.gpu else "none"
    speed = "n/a" if plan.tokens_per_second is None else f"~{plan.tokens_per_second:,.0f}"
    return [f"~{plan.needed_gib:.1f}", gpu, speed, f"{plan.licence or 'unknown'}{' *' if plan.gated else ''}"]


@recipes.command()
def show(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Every value, trl's defaults too, and who set it.")
    ] = False,
    launch: Annotated[
        bool, typer.Option("--launch", help="How it is launched: accelerate's configuration, DeepSpeed's, the command.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML or a table.")] = False,
) -> None:
    """Print a recipe with all it extends, all overrides and all defaults.

    Example: hf-efficient recipes show llama3.1-8b/qlora train.max_length=4096 --explain
    """
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.writing import dump_yaml

    loaded = load_recipe(recipe, overrides or [])
    if launch:
        page = launch_page(loaded, recipe, overrides or [], as_json=as_json)
        print_json(page) if as_json else print(page, end="")
    elif explain and as_json:
        print_json([row._asdict() for row in explained(loaded)])
    elif explain:
        from hf_efficient.reporting.terminal import show as show_table

        show_table([explanation_table(explained(loaded))], width=max(shutil.get_terminal_size((120, 24)).columns, 80))
    elif as_json:
        print_json(loaded.resolved())
    else:
        print(dump_yaml(loaded.resolved()), end="")


class ExplainedValue(NamedTuple):
    key: str
    value: Any
    set_by: str


def explained(recipe: Recipe) -> list[ExplainedValue]:
    from hf_efficient.recipe.train_fields import train_defaults, train_versions

    rows: dict[str, list[ExplainedValue]] = {section: [] for section in type(recipe).model_fields}
    for key, value in _leaves(recipe.resolved()):
        rows[key.partition(".")[0]].append(ExplainedValue(key, value, _set_by(recipe.provenance[key])))
    if not recipe.train:
        rows["train"].clear()
    default = f"default of trl {train_versions()['trl']}"
    rows["train"] += [ExplainedValue(key, value, default) for key, value in _leaves({"train": train_defaults(recipe)})]
    return [row for of_section in rows.values() for row in of_section]


def _leaves(data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    from hf_efficient.recipe.schema import Origin
    from hf_efficient.recipe.tree import dotted, wrap

    return ((dotted(path), node.value) for path, node in wrap(data, Origin("default")).leaves())


def _set_by(origin: Origin) -> str:
    """The origin, with a path below the current directory relative to it."""
    if origin.line is None:
        return str(origin)
    path = Path(origin.source)
    try:
        path = path.relative_to(Path.cwd()) if path.is_absolute() else path
    except ValueError:
        path = Path(os.path.normpath(path))
    return f"{path}:{origin.line}"


def explanation_table(rows: list[ExplainedValue]) -> Table:
    """What does not fit is folded."""
    from rich.text import Text

    from hf_efficient.recipe.writing import dump_yaml
    from hf_efficient.reporting.terminal import table

    made = table("key", "value", "set by", words=(0, 1, 2))
    for column in made.columns:
        column.overflow = "fold"
    for row in rows:
        value = dump_yaml([row.value]).removeprefix("- ").removesuffix("\n")
        made.add_row(*map(Text, (row.key, value, row.set_by)))
    return made


def launch_page(recipe: Recipe, argument: str, overrides: Sequence[str], *, as_json: bool) -> str:
    """accelerate's configuration file, DeepSpeed's JSON, if any, and the command that needs neither; ``RecipeError``
    where the processes do not divide the global batch."""
    from hf_efficient.facts.environment import accelerator_count, thread_count
    from hf_efficient.launch import command as launching
    from hf_efficient.recipe.rules.distributed import with_accumulation
    from hf_efficient.recipe.writing import dump_yaml

    devices = accelerator_count() if recipe.distributed.processes == "auto" else 0
    several = recipe.distributed.nodes > 1
    place = launching.NodePlace(0, "MACHINE_0", launching.DEFAULT_PORT) if several else None
    layout = launching.layout_of(recipe, device_count=devices, cores=thread_count(), place=place)
    with_accumulation(recipe, layout.world_size)
    engine = launching.strategy_of(recipe, layout.world_size)
    config = launching.accelerate_config(recipe, layout)
    share = launching.largest_share(recipe, layout.world_size) if launching.is_zero(engine) else 0
    zero = launching.deepspeed_config(recipe, engine, share) if launching.is_zero(engine) else None
    command = shlex.join(launching.accelerate_command(recipe, argument, overrides, layout))
    if as_json:
        page = {"strategy": engine, "accelerate": config, "deepspeed": zero, "command": command}
        return f"{json.dumps(page, indent=2)}\n"
    parts = [f"# accelerate launch --config_file FILE -m hf_efficient.train {argument}\n{dump_yaml(config)}"]
    if zero is not None:
        held = json.dumps(zero, indent=2)
        parts.append(f"# What the run passes to DeepSpeed; `auto` is filled in from the recipe.\n{held}\n")
    parts.append(f"# The same by flags alone, as `hf-efficient train` does it:\n$ {command}\n")
    return "\n".join(parts)


def schema(
    output: Annotated[Path | None, typer.Option("--output", help="Write it to this file instead.")] = None,
) -> None:
    """Print the JSON Schema of a recipe file, with the fields of the installed trl under train.

    Example: hf-efficient schema --output recipe.schema.json
    """
    from hf_efficient.recipe.json_schema import json_schema

    schema = json_schema()
    text = json.dumps(schema, indent=2) + "\n"
    if output is None:
        print(text, end="")
        return
    write_text("--output", output, text, mark=f'"$comment": "{schema["$comment"]}"')
    print(f"written: {output}")
