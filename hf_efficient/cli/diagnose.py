"""``hf-efficient diagnose``: what slows a run down or spoils it, what to change, and what that gives."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_efficient.cli.output import print_json
from hf_efficient.errors import SetupError
from hf_efficient.version import __version__

if TYPE_CHECKING:
    from hf_efficient.isolate.variants import Variant
    from hf_efficient.records.findings import Remedy
    from hf_efficient.records.isolation import Isolation

_TRACES = (".json", ".json.gz")


def diagnose(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_DIR|TRACE|RECIPE",
            help="Output directory of a run, a trace: NAME.json[.gz], or, with --isolate, a recipe.",
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="a.b=value", help="With --isolate: values that replace the recipe's.")
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option("--isolate", help="Run short variants of a recipe; attribute a step's time by their differences."),
    ] = False,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="With --isolate: steps measured of each variant; default: 12.")
    ] = None,
    apply: Annotated[
        Path | None,
        typer.Option(metavar="OUT.yaml", help="Write the recipe with a remedy in it, to be run as the next one."),
    ] = None,
    finding: Annotated[
        int | None, typer.Option(metavar="N", help="Which finding --apply takes; default: the first that it can.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Rank what slows a run down or spoils it: the evidence, what it costs, what to change, what that would give.

    Reads what a run has recorded, while it goes on, when it is over, after a crash; or a trace of torch's profiler, of
    whatever run. What cannot be judged is named, with the instrument that would tell.

    --isolate runs a recipe a dozen times for some steps each, with one thing left out or changed each time.

    Example: hf-efficient diagnose outputs/quickstart-qlora --apply next.yaml

    Example: hf-efficient diagnose quickstart/lora --isolate
    """
    path = Path(target).expanduser()
    if apply is None and finding is not None:
        raise typer.BadParameter("--finding says what --apply takes: give both.")
    _check_target(target, isolate)
    is_trace = path.name.endswith(_TRACES) and not path.is_dir()
    if not isolate and (overrides or steps is not None):
        said = "--steps" if steps is not None else (overrides or [""])[0]
        raise typer.BadParameter(f"{said} goes with --isolate: add it, and name a recipe.")
    if is_trace and not isolate and apply is not None:
        raise typer.BadParameter("--apply changes the recipe of a run, and a trace has none: name the RUN_DIR.")
    if isolate:
        _diagnose_recipe(target, overrides or [], steps, apply, finding, as_json)
    elif is_trace:
        _diagnose_trace(path, as_json)
    else:
        _diagnose_run(path, apply, finding, as_json)


def _check_target(target: str, isolate: bool) -> None:
    from hf_efficient.recipe.files import SUFFIXES

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


def _diagnose_run(run_dir: Path, apply: Path | None, number: int | None, as_json: bool) -> None:
    from hf_efficient.diagnosis.case import read_case
    from hf_efficient.diagnosis.confirmation import prediction
    from hf_efficient.diagnosis.engine import diagnose_case, to_json
    from hf_efficient.diagnosis.remedies import applied_recipe, remedy_of
    from hf_efficient.recipe.writing import check_new_file, write_new_file
    from hf_efficient.reporting.diagnosis import diagnosis_renderables
    from hf_efficient.reporting.terminal import show
    from hf_efficient.run_dir.paths import records_folder

    if apply is not None:
        check_new_file(apply, "--apply")
    directory = records_folder(run_dir)
    case = read_case(directory)
    found = diagnose_case(case)
    if as_json:
        print_json(to_json(found))
    else:
        show(diagnosis_renderables(found))
    if apply is None:
        return
    finding, remedy = remedy_of(found, number)
    confirms = prediction(case, finding, remedy)
    write_new_file(apply, applied_recipe(directory, finding, remedy, confirms), "--apply")
    _tell_applied(apply, remedy, " for the same tokens", "; its report says whether it came" if confirms else "")


def _tell_applied(path: Path, remedy: Remedy, of: str, then: str) -> None:
    from hf_efficient.reporting.diagnosis import change_words, gain_words

    gain = f", {gain_words(remedy.gain)} predicted{of}" if remedy.gain is not None else ""
    changes = " ".join(change_words(key, value) for key, value in remedy.overrides.items())
    told = f"--apply: {path} is the recipe with {changes}{gain}. Run it: hf-efficient train {path}{then}"
    print(told, file=sys.stderr)


def _diagnose_trace(path: Path, as_json: bool) -> None:
    """The breakdown of a Chrome trace that torch's profiler wrote, and below it what it tells to change."""
    from hf_efficient.diagnosis.engine import findings_of_trace
    from hf_efficient.reporting.diagnosis import OF_THE_TRACE, finding_renderables
    from hf_efficient.reporting.terminal import show
    from hf_efficient.reporting.trace_tables import trace_renderables
    from hf_efficient.trace.breakdown import trace_breakdown

    found = trace_breakdown(path)
    findings = findings_of_trace(found)
    if as_json:
        told = {**dataclasses.asdict(found), "findings": [dataclasses.asdict(one) for one in findings]}
        print_json(told)
        return
    show([*trace_renderables(found), *([""] if findings else []), *finding_renderables(findings, of=OF_THE_TRACE)])


def _diagnose_recipe(
    recipe: str, overrides: Sequence[str], steps: int | None, apply: Path | None, number: int | None, as_json: bool
) -> None:
    from hf_efficient.isolate.result import FEWEST_STEPS, STEPS, isolate
    from hf_efficient.preflight.launches import ends_on_signals
    from hf_efficient.recipe.writing import check_new_file
    from hf_efficient.reporting.isolation import isolation_renderables
    from hf_efficient.reporting.terminal import show

    wanted = STEPS if steps is None else steps
    if wanted < FEWEST_STEPS:
        raise SetupError(f"--steps: {wanted} are too few to tell a difference from its spread; write {FEWEST_STEPS}")
    if apply is not None:
        check_new_file(apply, "--apply")
    with ends_on_signals():
        found = isolate(recipe, overrides, wanted, _Lines())
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        show(isolation_renderables(found))
    if apply is not None:
        _apply(recipe, overrides, found, apply, number)


def _apply(argument: str, overrides: Sequence[str], found: Isolation, path: Path, number: int | None) -> None:
    from hf_efficient.diagnosis.remedies import remedy_of
    from hf_efficient.recipe.load import load_recipe
    from hf_efficient.recipe.writing import fixed_recipe, write_new_file

    assert found.diagnosis is not None
    finding, remedy = remedy_of(found.diagnosis, number)
    recipe = load_recipe(argument, overrides)
    own = {"output_dir": f"{recipe.output_dir}-{finding.rule.replace('_', '-')}"}
    remark = f"{finding.title}: {remedy.what}. By hf-efficient diagnose --isolate {__version__}."
    write_new_file(path, fixed_recipe(recipe, {**remedy.overrides, **own}, path, remark), "--apply")
    _tell_applied(path, remedy, "", "")


class _Lines:
    def begins(self, variant: Variant, number: int, of: int, round_number: int) -> None:
        again = f", round {round_number}" if round_number > 1 else ""
        print(f"[{number}/{of}{again}] {variant.name}: {variant.what} ...", end="", file=sys.stderr, flush=True)

    def ends(self, variant: Variant, seconds: float, failure: str) -> None:
        from hf_efficient.text import seconds as shown

        print(f" {shown(seconds)}{f', failed: {failure}' if failure else ''}", file=sys.stderr, flush=True)
