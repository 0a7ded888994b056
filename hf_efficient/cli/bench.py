"""``hf-efficient bench``: a recipe beside other trainers on the same work."""

from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import (
    MARKDOWN,
    Lines,
    Overrides,
    RecipeArgument,
    check_file,
    command_line,
    print_record,
    write_text,
)
from hf_efficient.errors import SetupError


def bench(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="ARM,ARM",
            help="Peers, the first of which ratios are over: trl, trl_packed, bare, recipe_plain, llamafactory, "
            "axolotl, unsloth, torchtune.",
        ),
    ] = "trl,trl_packed,bare",
    rounds: Annotated[int, typer.Option(metavar="N", help="Runs of each arm, in alternating orders.")] = 5,
    steps: Annotated[int, typer.Option(metavar="N", help="Optimizer steps of each run.")] = 8,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="The model's shape with random weights: no hub, no checkpoint.")
    ] = False,
    peer_python: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PYTHON", help="The Python that has a peer; once per peer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    to_markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Also write the table with its command.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Also draw the ratios.")] = None,
) -> None:
    """Train a recipe and its peers for a few steps on the same rows, in turns, and compare speed, memory and loss.

    Each run is a process of its own. A peer that does not learn is refused: its speed is not shown. Nothing is written
    to output_dir. Exit code 1: the recipe itself does not learn, or fails.

    Example: hf-efficient bench quickstart/lora --against trl,bare --rounds 3
    """
    from hf_efficient.preflight.launches import ends_on_signals
    from hf_efficient.reporting.bench import comparison_renderables, markdown, picture
    from hf_efficient.reporting.terminal import show
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
    _check_files(to_markdown, plot)
    with ends_on_signals():
        found = compare(
            recipe,
            overrides or [],
            arms,
            Lines(),
            rounds=rounds,
            steps=steps,
            pythons=pythons,
            random_weights=random_weights,
        )
    if to_markdown is not None:
        write_text("--markdown", to_markdown, f"{MARKDOWN}\n{markdown(found, command_line())}", MARKDOWN)
    if plot is not None:
        write_text("--plot", plot, picture(found))
    if as_json:
        print_record(found)
    else:
        show(comparison_renderables(found))
    if found.arms[-1].reason:
        raise typer.Exit(1)


def _check_files(to_markdown: Path | None, plot: Path | None) -> None:
    """Before minutes of work."""
    for flag, path, mark in (("--markdown", to_markdown, MARKDOWN), ("--plot", plot, "")):
        if path is not None:
            check_file(flag, path, mark)
    if plot is not None and plot.suffix != ".svg":
        raise SetupError(f"--plot: {plot} is no SVG file. Write {plot.with_suffix('.svg')}.")
