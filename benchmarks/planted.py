"""Does a diagnosis name the cause that was planted, stay silent on healthy runs, and predict gains that come true?

    python benchmarks/planted.py [--only NAME ...] [--apply] [--traceml] [--work DIR] [--json FILE]

Every run is a real training on the CPU in processes of its own, a few seconds to half a minute long. ``--apply`` runs
each fault's top remedy and holds what it gives against what was predicted. ``--traceml`` trains each run once more
under ``traceml run`` and puts TraceML's verdict beside ours.
"""

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planted_runs.cases import CASES, PlantedCase
from planted_runs.running import Bench, Ran, as_json, open_bench
from planted_runs.summary import (
    Applied,
    Judged,
    apply_remedy,
    confusion_table,
    findings_table,
    gains_table,
    judge_findings,
    prescription,
    score,
    score_lines,
    traceml_verdict,
)
from rich.console import Console
from shared import load_average, traceml_is_installed, write_result

console = Console(width=None if sys.stdout.isatty() else 180)  # a log has room for every name


def main() -> None:
    """Run the cases asked for, print and write what was found."""
    options = _options()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    if load is not None and load > 0.5:
        console.print(f"[yellow]This machine is busy (load average {load:.1f}): so are all the runs.[/]")
    judged: list[Judged] = []
    applied: dict[str, Applied] = {}
    verdicts: dict[str, str] = {}
    told: list[dict[str, Any]] = []
    with _work(options.work) as folder, open_bench(folder) as bench:
        for name in options.only or CASES:
            case = CASES[name]
            facts: dict[str, Any] = {"name": name, "what": case.what}
            told.append(facts)
            try:
                ran = _run(bench, case, "found")
                judged.append(_judged(case, ran))
                facts.update(asdict(judged[-1]) | as_json(ran))
                if options.apply and (came := _apply(bench, case, ran)) is not None:
                    applied[name] = came
                    facts["applied"] = came.to_json()
                if options.traceml:
                    facts["traceml"], verdicts[name] = _under_traceml(bench, case)
            except RuntimeError as error:
                facts["failed"] = str(error)
                console.print(str(error), style="red", markup=False)
    for table in (findings_table(judged, verdicts), confusion_table(judged), gains_table(applied)):
        if table.row_count:
            console.print(table)
    console.print(score_lines(score(judged)))
    if options.json is not None:
        loads = {"load_average_at_start": load, "load_average_at_end": load_average()}
        figures = {**loads, "cores": os.cpu_count(), "score": asdict(score(judged)), "runs": told}
        write_result(options.json, "planted", started, figures, packages=["traceml-ai"])
    if any("failed" in facts for facts in told):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help=f"of {', '.join(CASES)}")
    parser.add_argument("--apply", action="store_true", help="run the top remedies and hold their gains to account")
    parser.add_argument("--traceml", action="store_true", help="train each run under TraceML as well")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep what the runs write here; must be new or empty")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write findings with their evidence, and gains")
    options = parser.parse_args()
    if options.work is not None and options.work.exists() and any(options.work.iterdir()):
        parser.error(f"--work {options.work}: holds something; name a folder that is new or empty")
    if options.traceml and not traceml_is_installed():
        parser.error("--traceml: it is not installed: pip install -e '.[bench]'")
    return options


@contextmanager
def _work(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


def _run(bench: Bench, case: PlantedCase, label: str) -> Ran:
    ran = bench.run(case, label)
    first = ran.diagnosis.findings[0].rule if ran.diagnosis.findings else "nothing"
    print(f"{case.name}: {first}, loop {ran.diagnosis.loop_seconds:.1f} s", file=sys.stderr, flush=True)
    for fault in ran.diagnosis.faults:
        console.print(f"[red]{case.name}: a rule failed: {fault}[/]")
    return ran


def _judged(case: PlantedCase, ran: Ran) -> Judged:
    return judge_findings(case.name, case.expected, [(one.rule, one.severity) for one in ran.diagnosis.findings])


def _apply(bench: Bench, case: PlantedCase, ran: Ran) -> Applied | None:
    """None for a healthy run, or where there is nothing that could be applied or compared."""
    chosen = None if case.is_healthy else prescription(case, ran.diagnosis)
    if chosen is None or not ran.tokens:
        return None
    came = apply_remedy(bench, case, ran, chosen)
    print(f"  {dict(chosen.overrides) or chosen.what}: {came.check}", file=sys.stderr, flush=True)
    return came


def _under_traceml(bench: Bench, case: PlantedCase) -> tuple[dict[str, Any], str]:
    """Its verdict, and ours of the same run."""
    ran = bench.run(case, "traceml", traceml=True)
    verdict = traceml_verdict(ran.traceml)
    primary = (ran.traceml or {}).get("primary_diagnosis")
    ours = asdict(_judged(case, ran))
    return {"verdict": verdict, "primary_diagnosis": primary, "ours_of_the_same_run": ours}, verdict


if __name__ == "__main__":
    main()
