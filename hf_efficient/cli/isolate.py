"""``hf-efficient isolate``: short variants of a recipe; the time of its step by their differences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import (
    Apply,
    FindingNumber,
    Lines,
    Overrides,
    RecipeArgument,
    check_apply,
    check_is_recipe,
    print_record,
)
from hf_efficient.errors import SetupError
from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.records.isolation import Isolation


def isolate(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps measured of each variant.")] = 12,
    apply: Apply = None,
    finding: FindingNumber = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the attribution as JSON.")] = False,
) -> None:
    """Time the parts of a step: run a recipe a dozen times for a few steps, each time with one thing changed.

    The difference of two variants is the time of what they differ in. Nothing is written to output_dir.

    Example: hf-efficient isolate quickstart/lora --steps 8
    """
    from hf_efficient.preflight.launches import ends_on_signals
    from hf_efficient.reporting.isolation import isolation_renderables
    from hf_efficient.reporting.terminal import show
    from hf_efficient.trials.isolate import FEWEST_STEPS
    from hf_efficient.trials.isolate import isolate as run_variants

    if steps < FEWEST_STEPS:
        raise SetupError(f"--steps: {steps} are too few to see a difference beside its spread. Write {FEWEST_STEPS}.")
    check_apply(apply, finding)
    check_is_recipe(recipe, "isolate")
    with ends_on_signals():
        found = run_variants(recipe, overrides or [], steps, Lines())
    if as_json:
        print_record(found)
    else:
        show(isolation_renderables(found))
    if apply is not None:
        _apply(recipe, overrides or [], found, apply, finding)


def _apply(argument: str, overrides: list[str], found: Isolation, path: Path, number: int | None) -> None:
    from hf_efficient.cli.diagnose import print_applied
    from hf_efficient.diagnosis.remedies import remedy_of
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.writing import fixed_recipe, write_new_file

    assert found.diagnosis is not None
    finding, remedy = remedy_of(found.diagnosis, number)
    recipe = load_recipe(argument, overrides)
    own = {"output_dir": f"{recipe.output_dir}-{finding.rule.replace('_', '-')}"}
    remark = f"{finding.title}: {remedy.what}. By hf-efficient isolate {__version__}."
    write_new_file(path, fixed_recipe(recipe, {**remedy.overrides, **own}, path, remark), "--apply")
    print_applied(path, remedy)
