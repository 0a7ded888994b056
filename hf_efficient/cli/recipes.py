"""``hf-efficient recipes``: the shipped ones, and any recipe resolved or explained; ``schema``;
``validate``: a recipe checked; ``data``: its examples as the model will see them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

from hf_efficient.cli.output import Overrides, RecipeArgument, print_found, print_json, tell_remarks, write_text
from hf_efficient.reporting import terminal

if TYPE_CHECKING:
    from hf_efficient.data.examples import FirstRows
    from hf_efficient.recipe.files import ShippedPlan, ShippedRecipe
    from hf_efficient.recipe.load import ResolvedValue
    from hf_efficient.recipe.schema import Origin, Recipe

recipes = typer.Typer(add_completion=False, rich_markup_mode="rich")
_Method = Literal["lora", "dora", "rslora", "qlora", "full"]


@recipes.callback(invoke_without_command=True)
def _list(
    context: typer.Context,
    model: Annotated[str | None, Option(metavar="NAME", help="Only models with this in their name: 8b.")] = None,
    gpu_memory: Annotated[
        float | None, Option(metavar="GB", min=1, help="Only what fits GPUs with this memory: 24.")
    ] = None,
    method: Annotated[_Method | None, Option(help="Only this kind of training.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the shipped recipes with the memory, GPU and speed that their plans predict; show one resolved.

    Example: hf-efficient recipes --model llama --gpu-memory 24 --method qlora

    Example: hf-efficient recipes show quickstart/qlora --explain
    """
    if context.invoked_subcommand is not None:
        return
    from hf_efficient.facts.tables import usable_gib
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
    listed = terminal.table("recipe", "GiB", "GPU", "tokens/s", "licence", words=(0, 2, 4))
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
    terminal.show([listed, *remarks])


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
    explain: Annotated[bool, Option("--explain", help="Every value, trl's defaults too, and who set it.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of YAML or a table.")] = False,
) -> None:
    """Print a recipe with all it extends, all overrides and all defaults.

    Example: hf-efficient recipes show llama3.1-8b/qlora train.max_length=4096 --explain
    """
    from hf_efficient.recipe.load import dump_yaml, load_recipe

    loaded = load_recipe(recipe, overrides or [])
    if explain and as_json:
        print_json([row._asdict() for row in explained(loaded)])
    elif explain:
        width = max(shutil.get_terminal_size((120, 24)).columns, 80)
        terminal.show([explanation_table(explained(loaded))], width=width)
    elif as_json:
        print_json(loaded.resolved())
    else:
        print(dump_yaml(loaded.resolved()), end="")


def explained(recipe: Recipe) -> list[ResolvedValue]:
    from hf_efficient.recipe.load import ResolvedValue
    from hf_efficient.recipe.train_fields import train_defaults, train_versions
    from hf_efficient.recipe.tree import flat

    rows: dict[str, list[ResolvedValue]] = {section: [] for section in type(recipe).model_fields}
    for key, value in flat(recipe.resolved()).items():
        rows[key.partition(".")[0]].append(ResolvedValue(key, value, _set_by(recipe.provenance[key])))
    if not recipe.train:
        rows["train"].clear()
    default = f"default of trl {train_versions()['trl']}"
    others = flat({"train": train_defaults(recipe)})
    rows["train"] += [ResolvedValue(key, value, default) for key, value in others.items()]
    return [row for of_section in rows.values() for row in of_section]


def _set_by(origin: Origin) -> str:
    """The origin, with a path below the current directory relative to it."""
    if origin.line is None:
        return str(origin)
    path = Path(os.path.normpath(origin.source))
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{origin.line}"


def explanation_table(rows: list[ResolvedValue]) -> Table:
    from hf_efficient.recipe.load import dump_yaml

    made = terminal.table("key", "value", "set by", words=(0, 1, 2))
    for column in made.columns:
        column.overflow = "fold"
    for row in rows:
        value = dump_yaml([row.value]).removeprefix("- ").removesuffix("\n")
        made.add_row(*map(Text, (row.key, value, row.set_by or "")))
    return made


def schema(output: Annotated[Path | None, Option("--output", help="Write it to this file instead.")] = None) -> None:
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


def validate(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    as_json: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a recipe and list all its problems at once; exit code 2 where there are any.

    The first 1000 rows of each local data file are read. A setting that has no effect is named in a remark. Model and
    tokenizer are not loaded: `hf-efficient data` shows what the model will see.

    Example: hf-efficient validate recipes/llama3.1-8b/qlora.yaml train.max_length=4096
    """
    from hf_efficient.errors import RecipeError
    from hf_efficient.recipe.load import check_data_files, load_recipe
    from hf_efficient.recipe.rules.values import recipe_remarks

    try:
        loaded = load_recipe(recipe, overrides or [])
        check_data_files(loaded)
        from hf_efficient.data.examples import check_first_rows

        rows = check_first_rows(loaded)
    except RecipeError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [dataclasses.asdict(problem) for problem in error.problems]})
        raise typer.Exit(error.exit_code) from error
    remarks = recipe_remarks(loaded)
    if as_json:
        about = {"name": loaded.name, "objective": loaded.objective, "adapter": loaded.adapter.method}
        read = {key: dataclasses.asdict(one) for key, one in rows.items()}
        print_json({"ok": True, **about, "path": str(loaded.path), "rows": read, "remarks": remarks})
    else:
        kind = f"{loaded.objective}, {loaded.adapter.method}"
        print("\n".join([f"ok: {loaded.name} ({kind})", *_read(rows), *(f"warning: {one}" for one in remarks)]))


def _read(rows: Mapping[str, FirstRows]) -> Iterator[str]:
    for key, one in rows.items():
        if one.format is None:
            yield f"{key}: {one.path} is not on this machine: its rows were not read"
            continue
        which = "the only row" if one.rows == 1 else f"{'all' if one.whole else 'the first'} {one.rows:,} rows"
        yield f"{key}: {one.path}: read {which}, format {one.format}"


def data(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    examples: Annotated[int, Option(metavar="N", min=0, help="How many examples to show.")] = 3,
    as_json: Annotated[bool, Option("--json", help="Print examples and counts as JSON.")] = False,
) -> None:
    """Show the examples as the model will see them: targets, truncation, packing, counts.

    The data are prepared as in a run. It needs the tokenizer of the model, and not its weights.

    Example: hf-efficient data quickstart/qlora --examples 2 train.max_length=256
    """
    from hf_efficient.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    tell_remarks(loaded)
    with tempfile.TemporaryDirectory() as directory:
        from hf_efficient.data.look import look_at
        from hf_efficient.model.load import load_tokenizer
        from hf_efficient.planning.arguments import process_kept, run_arguments

        tokenizer = load_tokenizer(loaded.model, loaded.train)
        with process_kept():
            look = look_at(loaded, tokenizer, run_arguments(loaded, directory), examples)
    from hf_efficient.reporting.prepared import data_renderables

    drawn = partial(data_renderables, colour=terminal.has_colour())
    print_found(look, drawn, as_json=as_json, target_share=look.target_share)
