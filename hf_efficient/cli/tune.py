"""``hf-efficient tune``: one knob at a time, measured, accepted where it gains."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import (
    Lines,
    Overrides,
    RecipeArgument,
    check_is_recipe,
    command_line,
    print_record,
    write_page,
)


def tune(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    minutes: Annotated[float, typer.Option(metavar="Z", help="Time for all trials together.")] = 20.0,
    objective: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What to improve: tokens_per_second, usd_per_million_tokens, peak_memory, p95_step_seconds; or bulk "
            "(throughput), interactive (short steps), mixed (throughput, steps no longer than now).",
        ),
    ] = "tokens_per_second",
    p95_step_seconds: Annotated[
        float | None, typer.Option(metavar="X", help="Accept no step longer than that, at p95.")
    ] = None,
    max_memory: Annotated[float | None, typer.Option(metavar="GIB", help="Accept no higher peak.")] = None,
    eval_tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Refuse a loss that is higher by more.")
    ] = 0.02,
    without: Annotated[
        str, typer.Option(metavar="KNOB,KNOB", help="Knobs to leave as they are: cadence, packing.")
    ] = "",
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Of the tuning: journal, tuned recipe, page; default: OUTPUT_DIR-tuning."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the tuning as JSON.")] = False,
) -> None:
    """Make a recipe faster, cheaper or smaller: try one change at a time in short runs, keep what gains beyond noise.

    What the diagnosis ranks first is tried first. A candidate that does not fit is not run; one whose loss at equal
    tokens is higher is refused. The tuned recipe extends the original. Killed, the same command continues. Nothing is
    written to output_dir.

    Example: hf-efficient tune quickstart/lora --minutes 20
    """
    from hf_efficient.preflight.launches import ends_on_signals
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.reporting.html.tune_page import tune_page
    from hf_efficient.reporting.terminal import show
    from hf_efficient.reporting.tuning import tuning_renderables
    from hf_efficient.trials.goal import goal_of
    from hf_efficient.trials.tune import PAGE, TUNED, folder_of
    from hf_efficient.trials.tune import tune as run_trials

    goal = goal_of(
        objective,
        most_p95_seconds=p95_step_seconds,
        most_bytes=None if max_memory is None else int(max_memory * 2**30),
        tolerance=eval_tolerance,
        minutes=minutes,
        without=frozenset(name.strip() for name in without.split(",") if name.strip()),
    )
    check_is_recipe(recipe, "tune")
    place = folder or folder_of(load_recipe(recipe, overrides or []))
    with ends_on_signals():
        found = run_trials(recipe, overrides or [], goal, Lines(), place)
    text = (place / TUNED).read_text(encoding="utf-8") if found.changes else ""
    now = datetime.now().astimezone()
    write_page(None, place / PAGE, lambda: tune_page(found, command_line(), text, now), sys.stderr)
    if as_json:
        print_record(found)
        return
    show(tuning_renderables(found))
    if found.changes:
        print(f"\nThe tuned recipe is {place / TUNED}\nTrain it: hf-efficient train {place / TUNED}")
