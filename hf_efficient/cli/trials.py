"""Short trainings of a recipe: ``hf-efficient isolate`` (the parts of a step), ``tune`` (one knob at a time), ``sweep``
(all values of some), ``bench`` (beside other trainers)."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from hf_efficient.cli import output as shared
from hf_efficient.errors import SetupError


def isolate(
    recipe: shared.RecipeArgument,
    overrides: shared.Overrides = None,
    steps: Annotated[int, Option(metavar="N", help="Steps measured of each variant.")] = 12,
    as_json: Annotated[bool, Option("--json", help="Print the attribution as JSON.")] = False,
) -> None:
    """Time the parts of a step: run a recipe a dozen times for a few steps, each time with one thing changed.

    The difference of two variants is the time of what they differ in. Nothing is written to output_dir.

    Example: hf-efficient isolate quickstart/lora --steps 8
    """
    from hf_efficient.launch.exits import ends_on_signals
    from hf_efficient.reporting.trials import isolation_renderables
    from hf_efficient.trials.isolate import FEWEST_STEPS
    from hf_efficient.trials.isolate import isolate as run_variants

    if steps < FEWEST_STEPS:
        raise SetupError(f"--steps: {steps} are too few to see a difference beside its spread. Write {FEWEST_STEPS}.")
    shared.check_is_recipe(recipe, "isolate")
    with ends_on_signals():
        found = run_variants(recipe, overrides or [], steps, shared.Lines())
    shared.print_found(found, isolation_renderables, as_json=as_json)


def tune(
    recipe: shared.RecipeArgument,
    overrides: shared.Overrides = None,
    minutes: Annotated[float, Option(metavar="Z", help="Time for all trials together.")] = 20.0,
    objective: Annotated[
        str,
        Option(
            metavar="NAME",
            help="What to improve: tokens_per_second, usd_per_million_tokens, peak_memory, p95_step_seconds; or bulk "
            "(throughput), interactive (short steps), mixed (throughput, steps no longer than now).",
        ),
    ] = "tokens_per_second",
    p95_step_seconds: Annotated[
        float | None, Option(metavar="X", help="Accept no step longer than that, at p95.")
    ] = None,
    max_memory: Annotated[float | None, Option(metavar="GIB", help="Accept no higher peak.")] = None,
    eval_tolerance: Annotated[
        float, Option(metavar="PERCENT", help="Refuse a change whose loss at equal tokens is higher by more.")
    ] = 2.0,
    without: Annotated[str, Option(metavar="KNOB,KNOB", help="Knobs to leave as they are: cadence, packing.")] = "",
    folder: Annotated[
        Path | None,
        Option(metavar="DIR", help="Of the tuning: journal, tuned recipe, page; default: OUTPUT_DIR-tuning."),
    ] = None,
    on: Annotated[str | None, Option(metavar="TARGET", help="Run each trial as a job: slurm.")] = None,
    cluster: Annotated[Path | None, Option(metavar="FILE", help="YAML file that describes it, as of `submit`.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the tuning as JSON.")] = False,
) -> None:
    """Make a recipe faster, cheaper or smaller: try one change at a time in short runs, keep what gains beyond noise.

    What the diagnosis ranks first is tried first. A candidate that does not fit is not run; one whose loss at equal
    tokens is higher is refused. The tuned recipe extends the original. Killed, the same command continues. Nothing is
    written to output_dir.

    Example: hf-efficient tune quickstart/lora --minutes 20
    """
    from hf_efficient.jobs.job import load_cluster
    from hf_efficient.launch.exits import ends_on_signals
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.reporting.html.compare_page import tune_page
    from hf_efficient.reporting.trials import tuning_renderables
    from hf_efficient.trials.goal import goal_of
    from hf_efficient.trials.tune import PAGE, TUNED, folder_of
    from hf_efficient.trials.tune import tune as run_trials

    most_bytes = None if max_memory is None else int(max_memory * 2**30)
    knobs = frozenset(filter(None, map(str.strip, without.split(","))))
    limits: dict[str, Any] = {"most_p95_seconds": p95_step_seconds, "most_bytes": most_bytes, "without": knobs}
    goal = goal_of(objective, **limits, tolerance=eval_tolerance / 100, minutes=minutes)
    shared.check_is_recipe(recipe, "tune")
    if on not in (None, "slurm"):
        raise SetupError(f"--on: is {on}, and trials run as jobs of Slurm alone. Write --on slurm, or leave it out.")
    if cluster is not None and on is None:
        raise SetupError("--cluster: describes machines that no trial runs on. Write --on slurm with it.")
    place = folder or folder_of(load_recipe(recipe, overrides or []))
    with ends_on_signals():
        machines = load_cluster(cluster, {}) if on else None
        found = run_trials(recipe, overrides or [], goal, shared.Lines(), place, machines)
    text = (place / TUNED).read_text(encoding="utf-8") if found.changes else ""
    shared.write_page(None, place / PAGE, lambda: tune_page(found, shared.command_line(), text), sys.stderr)
    shared.print_found(found, tuning_renderables, as_json=as_json)
    if found.changes and not as_json:
        print(f"\nThe tuned recipe is {place / TUNED}\nTrain it: hf-efficient train {place / TUNED}")


def sweep(
    recipe: shared.RecipeArgument,
    overrides: shared.Overrides = None,
    over: Annotated[
        str,
        Option(
            metavar="KEY=N,N,KEY",
            help="Keys of `train:`; the curves are along the first. A key without values is doubled, the micro-batch "
            "from 1, others from a quarter of the recipe's value.",
        ),
    ] = "per_device_train_batch_size",
    p95_step_seconds: Annotated[
        float | None, Option(metavar="X", help="Ask for the most tokens/s with a p95 under that.")
    ] = None,
    max_memory: Annotated[float | None, Option(metavar="GIB", help="Run no point whose plan is larger.")] = None,
    minutes: Annotated[float, Option(metavar="Z", help="Time for all trials together.")] = 20.0,
    folder: Annotated[
        Path | None, Option(metavar="DIR", help="Of the sweep: journal, page; default: OUTPUT_DIR-sweep.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the sweep as JSON.")] = False,
) -> None:
    """Measure tokens/s and the time of a step at several micro-batches, lengths or other numbers; find the knee.

    Each point is planned first; one that does not fit is not run. The points run in turns, in short trials. Killed, the
    same command continues. Nothing is written to output_dir. Exit code 1: no point has a p95 under --p95-step-seconds.

    Example: hf-efficient sweep quickstart/lora --over per_device_train_batch_size=1,2,4,max_length=128,256
    """
    from hf_efficient.launch.exits import ends_on_signals
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.reporting.html.compare_page import sweep_page
    from hf_efficient.reporting.trials import sweep_renderables
    from hf_efficient.trials.goal import Goal
    from hf_efficient.trials.sweep import sweep as run_trials
    from hf_efficient.trials.tune import folder_of

    most_bytes = None if max_memory is None else int(max_memory * 2**30)
    goal = Goal(minutes=minutes, most_p95_seconds=p95_step_seconds, most_bytes=most_bytes)
    shared.check_is_recipe(recipe, "sweep")
    place = folder or folder_of(load_recipe(recipe, overrides or []), "sweep")
    with ends_on_signals():
        found = run_trials(recipe, overrides or [], over, goal, shared.Lines(), place)
    page = sweep_page(found, shared.command_line())
    shared.write_page(None, place / "sweep.html", lambda: page, sys.stderr)
    shared.print_found(found, sweep_renderables, as_json=as_json)
    if p95_step_seconds is not None and found.answer is None:
        raise typer.Exit(1)


def bench(
    recipe: shared.RecipeArgument,
    overrides: shared.Overrides = None,
    against: Annotated[
        str,
        Option(
            metavar="ARM,ARM",
            help="Peers, the first of which ratios are over: trl, trl_packed, bare, recipe_plain, llamafactory, "
            "axolotl, unsloth, torchtune.",
        ),
    ] = "trl,trl_packed,bare",
    rounds: Annotated[int, Option(metavar="N", help="Runs of each arm, in alternating orders.")] = 5,
    steps: Annotated[int, Option(metavar="N", help="Optimizer steps of each run.")] = 8,
    random_weights: Annotated[
        bool, Option("--random-weights", help="The model's shape with random weights: no hub, no checkpoint.")
    ] = False,
    peer_python: Annotated[
        list[str] | None, Option(metavar="NAME=PYTHON", help="The Python that has a peer; once per peer.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the comparison as JSON.")] = False,
    to_markdown: Annotated[
        Path | None, Option("--markdown", metavar="FILE", help="Also write the table with its command.")
    ] = None,
    plot: Annotated[Path | None, Option(metavar="FILE.svg", help="Also draw the ratios.")] = None,
) -> None:
    """Train a recipe and its peers for a few steps on the same rows, in turns, and compare speed, memory and loss.

    Each run is a process of its own. A peer that does not learn is refused: its speed is not shown. Nothing is written
    to output_dir. Exit code 1: the recipe itself does not learn, or fails.

    Example: hf-efficient bench quickstart/lora --against trl,bare --rounds 3
    """
    from hf_efficient.launch.exits import ends_on_signals
    from hf_efficient.reporting.trials import comparison_renderables, markdown, picture
    from hf_efficient.trials.arms import named_arms, peer_pythons
    from hf_efficient.trials.bench import compare

    names = [name.strip() for name in against.split(",") if name.strip()]
    if "recipe" in names:
        raise SetupError("--against: the recipe itself always runs. Name its peers alone.")
    if not names:
        raise SetupError("--against: names no peer. Write trl, for instance.")
    arms = named_arms([*names, "recipe"], "--against")
    pythons = peer_pythons(peer_python or [])
    unused = sorted(set(pythons) - set(names))
    if unused:
        raise SetupError(f"--peer-python: {unused[0]} does not run. Write --against {','.join([*names, unused[0]])}.")
    shared.check_file("--markdown", to_markdown, shared.MARKDOWN)
    shared.check_file("--plot", plot)
    if plot is not None and plot.suffix != ".svg":
        raise SetupError(f"--plot: {plot} is no SVG file. Write {plot.with_suffix('.svg')}.")
    options: dict[str, Any] = {"rounds": rounds, "steps": steps, "random_weights": random_weights}
    with ends_on_signals():
        found = compare(recipe, overrides or [], arms, shared.Lines(), pythons=pythons, **options)
    if to_markdown is not None:
        shared.write_text(
            "--markdown", to_markdown, f"{shared.MARKDOWN}\n{markdown(found, shared.command_line())}", shared.MARKDOWN
        )
    if plot is not None:
        shared.write_text("--plot", plot, picture(found))
    shared.print_found(found, comparison_renderables, as_json=as_json)
    if found.arms[-1].reason:
        raise typer.Exit(1)
