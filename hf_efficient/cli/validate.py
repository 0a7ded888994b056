"""``hf-efficient validate``: check a recipe, tell all its problems."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer


def validate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped one.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="Values that replace the recipe's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a recipe and tell all its problems at once; exit code 2 where there are any.

    A setting that has no effect is remarked on.

    Example: hf-efficient validate recipes/llama3.1-8b/qlora.yaml train.max_length=4096
    """
    from hf_efficient.errors import RecipeError
    from hf_efficient.recipe.load import load_recipe, recipe_remarks

    try:
        loaded = load_recipe(recipe, overrides or [])
    except RecipeError as error:
        if not as_json:
            raise
        problems = [dataclasses.asdict(problem) for problem in error.problems]
        print(json.dumps({"ok": False, "problems": problems}, indent=2))
        raise typer.Exit(error.exit_code) from error
    remarks = recipe_remarks(loaded)
    if as_json:
        told = {"name": loaded.name, "method": loaded.method, "adapter": loaded.adapter.method}
        print(json.dumps({"ok": True, **told, "path": str(loaded.path), "remarks": remarks}, indent=2))
    else:
        print("\n".join([f"ok: {loaded.name} ({loaded.method}, {loaded.adapter.method})", *remarks]))
