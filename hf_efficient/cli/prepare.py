"""``hf-efficient prepare``: the training data of a recipe, cleaned and blended as its `data.pipeline` says; and
``hf-efficient prune``: its model without some blocks."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from hf_efficient.cli import output as shared
from hf_efficient.errors import SetupError
from hf_efficient.reporting.terminal import show


def prepare(
    recipe: shared.RecipeArgument,
    overrides: shared.Overrides = None,
    tokens_per_second: Annotated[
        float | None, Option(metavar="N", min=0.001, help="Speed of the training, for what removed tokens would cost.")
    ] = None,
    html: Annotated[Path | None, Option(metavar="FILE", help="Write funnel and samples as a page.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Clean, de-duplicate and blend the training data of a recipe, as its data.pipeline says.

    The data set is written to prepared/NAME, in a folder of its own for each version of sources and options. `train`
    reads it, and writes it first where it is missing or stale. A run that was killed continues at its last stage.

    Example: hf-efficient prepare my-recipe.yaml data.pipeline.exact_duplicates.fold=true --html data.html
    """
    from hf_efficient.recipe.load import check_data_files, load_recipe

    loaded = load_recipe(recipe, overrides or [])
    if loaded.data.pipeline is None:
        raise SetupError("data.pipeline: is not set. Write `data.pipeline: {}` for the stages by default.")
    shared.check_file("--html", html, shared.PAGE)
    check_data_files(loaded)
    from hf_efficient.curation.pipeline import prepare as run_pipeline
    from hf_efficient.curation.worth import training_rate
    from hf_efficient.model.load import load_tokenizer
    from hf_efficient.reporting.prepared import prepared_renderables, stage_bars

    shared.tell_remarks(loaded)
    tokenizer = load_tokenizer(loaded.model, loaded.train)
    with stage_bars() as tell:
        done = run_pipeline(loaded, tokenizer, tell)
    rate = training_rate(loaded, tokens_per_second)
    if as_json:
        shared.print_json({"folder": str(done.folder), "fresh": done.fresh, **dataclasses.asdict(done.manifest)})
    else:
        show(["", *prepared_renderables(done.manifest, done.folder, rate, fresh=done.fresh)])
    if html is not None:
        from hf_efficient.reporting.html.run_page import prepared_page

        page = prepared_page(done.manifest, done.folder, rate, shared.command_line())
        shared.write_page(html, html, lambda: page, sys.stderr if as_json else None)


def prune(
    recipe: shared.RecipeArgument,
    output: Annotated[Path, Option(metavar="DIR", help="Where to write the model: an empty folder, or a new one.")],
    overrides: shared.Overrides = None,
    layers: Annotated[float, Option(min=0.0, metavar="N", help="Blocks to take out: a number, or a share.")] = 0.2,
    mlp: Annotated[
        float | None, Option(min=0.01, max=0.99, metavar="SHARE", help="Of each MLP's neurons to take out.")
    ] = None,
    calibration_rows: Annotated[int, Option(min=1, metavar="N", help="Training rows that all is measured on.")] = 32,
    as_json: Annotated[bool, Option("--json", help="Print what went, and how much each block does, as JSON.")] = False,
) -> None:
    """Take the blocks out of a recipe's model that change its hidden states least, and write what is left.

    Any recipe may train the folder: with LoRA or QLoRA too, which `model.prune` in a recipe cannot do.

    Example: hf-efficient prune llama3.1-8b/lora --layers 0.2 --output llama-pruned
    """
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.schema import PruneSection

    loaded = load_recipe(recipe, overrides or [])
    count = int(layers) if layers.is_integer() else layers
    if isinstance(count, float) and count > 1:
        raise SetupError(f"--layers: {layers} is neither a number of blocks nor a share. Write 2, or 0.2 for a fifth.")
    from hf_efficient.launch.pruned import write_pruned

    section = PruneSection(layers=count, mlp=mlp, calibration_rows=calibration_rows)
    found = write_pruned(loaded, section, output)
    if as_json:
        shared.print_json({**dataclasses.asdict(found), "output": str(output)})
    else:
        print(f"{found.line()}: {output}")
