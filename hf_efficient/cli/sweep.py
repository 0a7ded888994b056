"""``hf-efficient sweep``: throughput against the time of a step."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, print_json, write_page
from hf_efficient.cli.tune import TrialLines, check_is_recipe
from hf_efficient.errors import SetupError


def sweep(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    over: Annotated[
        str, typer.Option(metavar="KEY,KEY", help="Keys of train: per_device_train_batch_size, max_length.")
    ] = "per_device_train_batch_size,max_length",
    rows: Annotated[str, typer.Option(metavar="N,N", help="Micro-batches; default: 1 to 16.")] = "",
    lengths: Annotated[
        str, typer.Option(metavar="N,N", help="Lengths; default: the recipe's, a half and a quarter of it.")
    ] = "",
    p95_step_seconds: Annotated[
        float | None, typer.Option("--p95-step-seconds", metavar="X", help="Name the best point with a p95 under it.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Of the sweep: journal and page; default: OUTPUT_DIR-sweep.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the points as JSON.")] = False,
) -> None:
    """Train a few steps of each micro-batch and length: tokens/s, percentiles of a step, memory, MFU, and the knee.

    A point that does not fit is not run. Killed, the same command continues. Nothing is written to output_dir.

    Example: hf-efficient sweep quickstart/lora --over per_device_train_batch_size --p95-step-seconds 2
    """
    from hf_efficient.preflight.launches import ends_on_signals
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.reporting.html.tune_page import sweep_page
    from hf_efficient.reporting.sweep import sweep_renderables
    from hf_efficient.reporting.terminal import show
    from hf_efficient.tune.sweep import folder_of_sweep
    from hf_efficient.tune.sweep import sweep as run_points

    axes = [name.strip() for name in over.split(",") if name.strip()]
    values = {"rows": numbers("--rows", rows), "lengths": numbers("--lengths", lengths)}
    check_is_recipe(recipe, "sweep")
    place = folder or folder_of_sweep(load_recipe(recipe, overrides or []))
    with ends_on_signals():
        found = run_points(
            recipe, overrides or [], axes, TrialLines(), **values, p95_seconds=p95_step_seconds, folder=place
        )
    command = shlex.join(["hf-efficient", *sys.argv[1:]])
    now = datetime.now().astimezone()
    write_page(None, place / "sweep.html", lambda: sweep_page(found, command, now), sys.stderr)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        show(sweep_renderables(found))


def numbers(flag: str, text: str) -> list[int]:
    """``1,2,4``; ``SetupError`` for anything that is no whole number above zero."""
    parts = [one.strip() for one in text.split(",") if one.strip()]
    wrong = next((one for one in parts if not one.isdecimal() or int(one) < 1), None)
    if wrong is not None:
        raise SetupError(f"{flag}: {wrong} is no whole number above zero. Write 1,2,4, for instance.")
    return sorted({int(one) for one in parts})
