"""``hf-efficient validate``: a recipe checked; ``data``: its examples as the model will see them."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, print_json

if TYPE_CHECKING:
    from hf_efficient.data.examples import FirstRows


def validate(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check a recipe and list all its problems at once; exit code 2 where there are any.

    The first 1000 rows of each local data file are read. A setting that has no effect is named in a remark. Model and
    tokenizer are not loaded: `hf-efficient data` shows what the model will see.

    Example: hf-efficient validate recipes/llama3.1-8b/qlora.yaml train.max_length=4096
    """
    from hf_efficient.errors import RecipeError
    from hf_efficient.recipe.load import check_data_files, load_recipe
    from hf_efficient.recipe.remarks import recipe_remarks

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
        print("\n".join([f"ok: {loaded.name} ({kind})", *_read(rows), *remarks]))


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
    examples: Annotated[int, typer.Option(metavar="N", min=0, help="How many examples to show.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print examples and counts as JSON.")] = False,
) -> None:
    """Show the examples as the model will see them: targets, truncation, packing, counts.

    The data are prepared as in a run. It needs the tokenizer of the model, and not its weights.

    Example: hf-efficient data quickstart/qlora --examples 2 train.max_length=256
    """
    from hf_efficient.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    with tempfile.TemporaryDirectory() as directory:
        from hf_efficient.data.look import look_at
        from hf_efficient.model.load import load_tokenizer
        from hf_efficient.planning.arguments import process_kept, run_arguments

        tokenizer = load_tokenizer(loaded.model, loaded.train)
        with process_kept():
            look = look_at(loaded, tokenizer, run_arguments(loaded, directory), examples)
    from hf_efficient.reporting.data import data_renderables
    from hf_efficient.reporting.terminal import has_colour, show

    if as_json:
        print_json({**dataclasses.asdict(look), "target_share": look.target_share})
    else:
        show(data_renderables(look, colour=has_colour()))
