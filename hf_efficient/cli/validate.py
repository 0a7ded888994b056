"""``hf-efficient validate``: check a recipe, list all its problems."""

import dataclasses
from typing import Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, print_json


def validate(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a recipe and list all its problems at once; exit code 2 where there are any.

    A setting that has no effect is named in a remark. Rows of the data are not read: `hf-efficient data` reads them.

    Example: hf-efficient validate recipes/llama3.1-8b/qlora.yaml train.max_length=4096
    """
    from hf_efficient.errors import RecipeError
    from hf_efficient.recipe.data_files import check_data_files
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.remarks import recipe_remarks

    try:
        loaded = load_recipe(recipe, overrides or [])
        check_data_files(loaded)
    except RecipeError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": [dataclasses.asdict(problem) for problem in error.problems]})
        raise typer.Exit(error.exit_code) from error
    remarks = recipe_remarks(loaded)
    if as_json:
        about = {"name": loaded.name, "objective": loaded.objective, "adapter": loaded.adapter.method}
        print_json({"ok": True, **about, "path": str(loaded.path), "remarks": remarks})
    else:
        print("\n".join([f"ok: {loaded.name} ({loaded.objective}, {loaded.adapter.method})", *remarks]))
