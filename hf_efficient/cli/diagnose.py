"""``hf-efficient diagnose``: what slows a run down or spoils it, what to change, and what that gives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["diagnose"]


_TRACES = (".json", ".json.gz")


def is_trace(path: Path) -> bool:
    """Whether the name is that of a trace rather than a run's."""
    return path.name.endswith(_TRACES) and not path.is_dir()


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
        int | None,
        typer.Option(metavar="N", help="Which finding --apply takes; default: the first that it can."),
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
    from hf_efficient.cli.diagnose_isolate import check_target, diagnose_isolate

    check_target(target, isolate)
    if isolate:
        diagnose_isolate(target, overrides or [], steps, apply, finding, as_json)
        return
    if overrides or steps is not None:
        said = "--steps" if steps is not None else (overrides or [""])[0]
        raise typer.BadParameter(f"{said} goes with --isolate: add it, and name a recipe.")
    if is_trace(path):
        if apply is not None:
            raise typer.BadParameter("--apply changes the recipe of a run, and a trace has none: name the RUN_DIR.")
        from hf_efficient.cli.diagnose_trace import diagnose_trace

        diagnose_trace(path, as_json)
        return
    from hf_efficient.cli.diagnose_run import diagnose_run

    diagnose_run(path, apply, finding, as_json)
