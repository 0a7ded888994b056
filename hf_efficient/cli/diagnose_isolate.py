"""``hf-efficient diagnose RECIPE --isolate``: short controlled variants, and a step's time by their differences."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from hf_efficient.errors import SetupError
from hf_efficient.recipe.new_file import check_new_file, write_new_file
from hf_efficient.recipe.shipped_files import SUFFIXES
from hf_efficient.report.diagnosis_words import told_change, told_gain
from hf_efficient.report.isolation_console import isolation_renderables
from hf_efficient.units import seconds as shown
from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.isolate.variant import Variant
    from hf_efficient.records.isolation import Isolation

__all__ = ["check_target", "diagnose_isolate"]


def check_target(target: str, isolate: bool) -> None:
    """A recipe goes with ``--isolate``, and a run without.

    Raises:
        SetupError: it is the other way round.
    """
    path = Path(target).expanduser()
    if isolate and path.is_dir():
        raise SetupError(
            f"--isolate: {target} is a folder, and variants are made of a recipe: name the recipe file, or a shipped "
            f"recipe. Of a run: hf-efficient diagnose {target}"
        )
    if not isolate and path.suffix in SUFFIXES and path.is_file():
        raise SetupError(
            f"{target} is a recipe, which has recorded nothing: add --isolate to run short variants of it, or name the "
            "output directory of a run of it."
        )


def diagnose_isolate(
    recipe: str, overrides: Sequence[str], steps: int | None, apply: Path | None, number: int | None, as_json: bool
) -> None:
    """Run the variants, print the attribution and the findings; write the recipe with a remedy.

    Args:
        recipe: a recipe file, or the name of a shipped one.
        overrides: ``a.b=value`` each.
        steps: to be measured of each variant; None: the default.
        apply: of the new recipe; None: none is written.
        number: of the finding whose remedy it takes, from 1; None: the first that changes a recipe.
        as_json: print it as JSON.

    Raises:
        HfEfficientError: the recipe, this machine or the new file cannot be used.
    """
    from hf_efficient.isolate.isolate import FEWEST_STEPS, STEPS, isolate

    wanted = STEPS if steps is None else steps
    if wanted < FEWEST_STEPS:
        raise SetupError(f"--steps: {wanted} are too few to tell a difference from its spread; write {FEWEST_STEPS}")
    if apply is not None:
        check_new_file(apply, "--apply")
    with _ends_as_by_keyboard():
        found = isolate(recipe, overrides, wanted, _Lines())
    if as_json:
        print(json.dumps(dataclasses.asdict(found), indent=2, allow_nan=False))
    else:
        console = Console(highlight=False)
        for part in isolation_renderables(found):
            console.print(part)
    if apply is not None:
        _apply(recipe, overrides, found, apply, number)


def _apply(argument: str, overrides: Sequence[str], found: Isolation, path: Path, number: int | None) -> None:
    from hf_efficient.diagnosis.apply import remedy_of
    from hf_efficient.planning.fixed_recipe import fixed_recipe
    from hf_efficient.recipe.load import load_recipe

    assert found.diagnosis is not None
    finding, remedy = remedy_of(found.diagnosis, number)
    recipe = load_recipe(argument, overrides)
    own = {"output_dir": f"{recipe.output_dir}-{finding.rule.replace('_', '-')}"}
    remark = f"{finding.title}: {remedy.what}. By hf-efficient diagnose --isolate {__version__}."
    write_new_file(path, fixed_recipe(recipe, {**remedy.overrides, **own}, path, remark), "--apply")
    gain = f", {told_gain(remedy.gain)} predicted" if remedy.gain is not None else ""
    changes = " ".join(told_change(key, value) for key, value in remedy.overrides.items())
    print(f"--apply: {path} is the recipe with {changes}{gain}. Run it: hf-efficient train {path}", file=sys.stderr)


class _Lines:
    """A line on standard error for each variant that runs."""

    def begins(self, variant: Variant, number: int, of: int, round_number: int) -> None:
        again = f", round {round_number}" if round_number > 1 else ""
        print(f"[{number}/{of}{again}] {variant.name}: {variant.what} ...", end="", file=sys.stderr, flush=True)

    def ends(self, variant: Variant, seconds: float, failure: str) -> None:
        print(f" {shown(seconds)}{f', failed: {failure}' if failure else ''}", file=sys.stderr, flush=True)


@contextmanager
def _ends_as_by_keyboard() -> Iterator[None]:
    """A signal to end leaves no process and no folder behind, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
