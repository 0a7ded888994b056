"""``hf-efficient tune``: one knob at a time, measured, accepted where it gains."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import Overrides, RecipeArgument, print_json
from hf_efficient.errors import SetupError

_UNITS = {"": 1, "B": 1, **{f"{one}B": 1000**place for place, one in enumerate("KMGT", 1)}}
_UNITS |= {f"{one}IB": 1024**place for place, one in enumerate("KMGT", 1)}


def tune(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    objective: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What to improve: tokens_per_second, usd_per_million_tokens, peak_memory, p95_step_seconds; or bulk "
            "(throughput), interactive (short steps), mixed (throughput, steps no longer than now).",
        ),
    ] = "tokens_per_second",
    p95_step_seconds: Annotated[
        float | None, typer.Option("--p95-step-seconds", metavar="X", help="Accept no step longer than that, at p95.")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option("--max-memory", metavar="SIZE", help="Accept no higher peak: 20GiB, 6GB.")
    ] = None,
    minutes: Annotated[float, typer.Option(metavar="Z", help="Time for all trials together.")] = 20.0,
    eval_tolerance: Annotated[
        float, typer.Option("--eval-tolerance", metavar="SHARE", help="Refuse a loss that is higher by more.")
    ] = 0.01,
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
    from hf_efficient.reporting.terminal import show
    from hf_efficient.reporting.tuning import tuning_renderables
    from hf_efficient.tune.goal import goal_of
    from hf_efficient.tune.tuning import TUNED, folder_of
    from hf_efficient.tune.tuning import tune as run_trials

    goal = goal_of(
        objective,
        most_p95_seconds=p95_step_seconds,
        most_bytes=None if max_memory is None else memory_bytes(max_memory),
        tolerance=eval_tolerance,
        minutes=minutes,
        without=frozenset(name.strip() for name in without.split(",") if name.strip()),
    )
    check_is_recipe(recipe, "tune")
    place = folder or folder_of(load_recipe(recipe, overrides or []))
    with ends_on_signals():
        found = run_trials(recipe, overrides or [], goal, TrialLines(), place)
    _write_page(place, found)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    show(tuning_renderables(found))
    if found.changes:
        print(f"\nThe tuned recipe is {place / TUNED}\nTrain it: hf-efficient train {place / TUNED}")


def memory_bytes(text: str) -> int:
    """``20GiB``, ``6 GB``, ``500000000``; ``SetupError`` for anything else, and for nothing."""
    found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?i?b|)\s*", text, re.IGNORECASE)
    try:
        number = 0.0 if found is None else float(found[1]) * _UNITS[found[2].upper()]
    except (ValueError, KeyError):
        number = 0.0
    if number < 1:
        raise SetupError(f"--max-memory: {text} is no size of memory. Write 20GiB, for instance.")
    return int(number)


def check_is_recipe(recipe: str, command: str) -> None:
    if Path(recipe).expanduser().is_dir():
        raise SetupError(f"{recipe}: is a folder, and {command} runs a recipe. Name a recipe file or a shipped recipe.")


def _write_page(place: Path, found: object) -> None:
    from datetime import datetime

    from hf_efficient.cli.output import write_page
    from hf_efficient.records.tuning import Tuning
    from hf_efficient.reporting.html.tune_page import tune_page
    from hf_efficient.tune.tuning import PAGE, TUNED

    assert isinstance(found, Tuning)
    text = (place / TUNED).read_text(encoding="utf-8") if found.changes else ""
    command = shlex.join(["hf-efficient", *sys.argv[1:]])
    now = datetime.now().astimezone()
    write_page(None, place / PAGE, lambda: tune_page(found, command, text, now), sys.stderr)


class TrialLines:
    """A line on standard error for each trial, and for each decision."""

    def begins(self, what: str) -> None:
        print(f"{what} ...", end="", file=sys.stderr, flush=True)

    def ends(self, what: str) -> None:
        print(f" {what}", file=sys.stderr, flush=True)
