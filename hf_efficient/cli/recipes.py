"""``hf-efficient recipes``: the shipped recipes, and any recipe resolved and explained."""

from __future__ import annotations

import json
from typing import Annotated

import typer

__all__ = ["recipes"]

recipes = typer.Typer(add_completion=False, rich_markup_mode=None)


@recipes.callback(invoke_without_command=True)
def _list(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the shipped recipes, or show one resolved.

    Example: hf-efficient recipes show quickstart/qlora --explain
    """
    if context.invoked_subcommand is not None:
        return
    from hf_efficient.recipe.shipped import list_recipes

    found = list_recipes()
    if as_json:
        rows = [{"name": one.name, "description": one.description, "path": str(one.path)} for one in found]
        print(json.dumps(rows, indent=2))
        return
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        print(f"{one.name:<{width}}  {one.description}".rstrip())


@recipes.command()
def show(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")
    ] = None,
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
    from hf_efficient.cli.explanation import explained, explanation_table
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.yaml_dump import dump_yaml

    loaded = load_recipe(recipe, overrides or [])
    if launch:
        from hf_efficient.cli.launch_page import launch_page

        print(launch_page(loaded, recipe, overrides or [], as_json=as_json), end="")
    elif explain and as_json:
        print(json.dumps([row._asdict() for row in explained(loaded)], indent=2))
    elif explain:
        print(explanation_table(explained(loaded)))
    elif as_json:
        print(json.dumps(loaded.resolved(), indent=2))
    else:
        print(dump_yaml(loaded.resolved()), end="")
