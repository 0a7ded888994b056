"""``hf-efficient trace``: where the time of a trace went that torch's profiler wrote."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hf_efficient.cli.output import print_json
from hf_efficient.errors import SetupError

_TRACES = "*.trace.json*"


def trace(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="NAME.json or NAME.json.gz, of whatever run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print breakdown and findings as JSON.")] = False,
) -> None:
    """Show where a trace of torch's profiler spent its time: busy, idle, kernels, copies, communication, waits.

    Below the breakdown: what to change. A run writes traces with `profile.trace={}`.

    Example: hf-efficient trace outputs/slow/efficiency/profile/trace.rank0.cycle0.pt.trace.json.gz
    """
    from hf_efficient.diagnosis.engine import findings_of_trace
    from hf_efficient.reporting.diagnosis import OF_THE_TRACE, finding_renderables
    from hf_efficient.reporting.terminal import show
    from hf_efficient.reporting.trace_tables import trace_renderables
    from hf_efficient.trace.breakdown import trace_breakdown

    file = file.expanduser()
    if file.is_dir():
        held = sorted([*file.glob(_TRACES), *file.glob(f"efficiency/profile/{_TRACES}")])
        remedy = f"Name a trace in it: {held[0]}" if held else "A run writes one with profile.trace={}"
        raise SetupError(f"{file}: is a folder. {remedy}")
    found = trace_breakdown(file)
    findings = findings_of_trace(found)
    if as_json:
        print_json({**dataclasses.asdict(found), "findings": [dataclasses.asdict(one) for one in findings]})
        return
    show([*trace_renderables(found), *([""] if findings else []), *finding_renderables(findings, of=OF_THE_TRACE)])
