"""``hf-efficient data``: the examples as the model will see them."""

import tempfile
from typing import Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, print_json


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
    from hf_efficient.reporting.data import data_as_json, data_renderables
    from hf_efficient.reporting.terminal import has_colour, show

    if as_json:
        print_json(data_as_json(look))
    else:
        show(data_renderables(look, colour=has_colour()))
