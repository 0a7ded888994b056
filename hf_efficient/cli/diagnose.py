"""``hf-efficient diagnose``: what slows a run down or spoils it, and what to change; ``trace``: the same of a trace."""

import dataclasses
import shlex
import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from hf_efficient.cli.output import RunDir, print_json
from hf_efficient.errors import SetupError
from hf_efficient.reporting.terminal import show

_TRACES = (".json", ".json.gz")


def diagnose(
    run_dir: RunDir,
    apply: Annotated[Path | None, Option(metavar="OUT.yaml", help="Write a new recipe with a remedy in it.")] = None,
    finding: Annotated[
        int | None, Option(metavar="N", help="Which finding --apply takes; default: the first that it can.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Rank what slows a run down or spoils it: the evidence, what it costs, what to change, and the predicted gain.

    Reads the records of a run: during it, after its end, after a crash. What cannot be judged is named, with the
    instrument that would give the evidence.

    A trace of torch's profiler: `hf-efficient trace`. Short variants of a recipe: `hf-efficient isolate`.

    Example: hf-efficient diagnose outputs/quickstart-qlora --apply next.yaml
    """
    from hf_efficient.diagnosis.case import read_case
    from hf_efficient.diagnosis.engine import diagnose_case
    from hf_efficient.diagnosis.remedies import applied_recipe, prediction, remedy_of
    from hf_efficient.estimate.significance import FEWEST_STEPS
    from hf_efficient.estimate.statistics import WARM_UP_STEPS
    from hf_efficient.recipe.load import check_new_file, write_new_file
    from hf_efficient.reporting.diagnosis import diagnosis_renderables, gain_words, remedy_words
    from hf_efficient.run_dir.json_file import strict_json
    from hf_efficient.run_dir.paths import records_folder

    if apply is not None:
        check_new_file(apply, "--apply")
    elif finding is not None:
        raise SetupError("--finding: chooses what --apply writes. Add --apply OUT.yaml.")
    _check_is_run(run_dir)
    directory = records_folder(run_dir)
    case = read_case(directory)
    found = diagnose_case(case)
    if as_json:
        print_json(strict_json(found))
    else:
        show(diagnosis_renderables(found))
    if apply is None:
        return
    chosen, remedy = remedy_of(found, finding)
    confirms = prediction(case, chosen, remedy)
    write_new_file(apply, applied_recipe(directory, chosen, remedy, confirms), "--apply")
    then = "; its report confirms or retracts it" if confirms else ""
    if confirms and "predicted_saving" in confirms and "spread" not in confirms:
        fewest = FEWEST_STEPS + WARM_UP_STEPS
        then = f". Its report cannot confirm the time: that needs the records of {fewest} steps of each run"
    gain = f", {gain_words(remedy.gain)} predicted for the same tokens" if remedy.gain is not None else ""
    changes = " ".join(remedy_words(remedy, recipe=True))
    run = f"Run it: hf-efficient train {shlex.quote(str(apply))}{then}"
    print(f"--apply: {apply} is the recipe with {changes}{gain}. {run}", file=sys.stderr)


def _check_is_run(path: Path) -> None:
    from hf_efficient.recipe.files import SUFFIXES, shipped_files, shipped_root

    name = shlex.quote(str(path))
    if path.name.endswith(_TRACES) and not path.is_dir():
        raise SetupError(f"{path}: is no run. For a trace: hf-efficient trace {name}")
    is_file = path.suffix in SUFFIXES and path.is_file()
    if is_file or (not path.exists() and str(path) in shipped_files(shipped_root())):
        raise SetupError(
            f"{path}: is a recipe, and diagnose reads a run. Name its output directory, or run short variants of the "
            f"recipe: hf-efficient isolate {name}"
        )


_OF_A_RUN = "*.trace.json*"


def trace(
    file: Annotated[Path, Argument(metavar="FILE", help="NAME.json or NAME.json.gz, of whatever run.")],
    as_json: Annotated[bool, Option("--json", help="Print breakdown and findings as JSON.")] = False,
) -> None:
    """Show where a trace of torch's profiler spent its time: busy, idle, kernels, copies, communication, waits.

    Below the breakdown: what to change. A run writes traces with `profile.trace={}`.

    Example: hf-efficient trace outputs/slow/efficiency/profile/trace.rank0.cycle0.pt.trace.json.gz
    """
    from hf_efficient.diagnosis.engine import findings_of_trace
    from hf_efficient.reporting.diagnosis import OF_THE_TRACE, finding_renderables
    from hf_efficient.reporting.profile_tables import trace_renderables
    from hf_efficient.trace.breakdown import trace_breakdown

    file = file.expanduser()
    if file.is_dir():
        held = sorted([*file.glob(_OF_A_RUN), *file.glob(f"efficiency/profile/{_OF_A_RUN}")])
        remedy = f"Name a trace in it: {held[0]}" if held else "A run writes one with profile.trace={}"
        raise SetupError(f"{file}: is a folder. {remedy}")
    found = trace_breakdown(file)
    findings = findings_of_trace(found)
    if as_json:
        print_json({**dataclasses.asdict(found), "findings": [dataclasses.asdict(one) for one in findings]})
        return
    show([*trace_renderables(found), *([""] if findings else []), *finding_renderables(findings, of=OF_THE_TRACE)])
