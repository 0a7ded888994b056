"""What does EfficientTrainer cost, with all that it does by default, and what does TraceML beside it?

    python benchmarks/overhead.py [--only tiny|short|tiny_logs|smollm2|gpu] [--rounds N] [--process-rounds N]
                                  [--steps K] [--json FILE]

Measured in two ways:

- In one process ``Trainer``, ``Trainer`` once more (the noise of the measurement) and ``EfficientTrainer`` alternate,
  each on a fresh copy of the model: by blocks of steps, or where a step takes long, step by step in turn. This decides
  about the target.
- In a fresh process each, ``Trainer``, ``EfficientTrainer`` and ``Trainer`` under ``traceml run`` alternate. TraceML
  patches its whole process, so that this is the only way to measure it; it is coarser.

Of each round the step times are paired; told are the median of the pairs and the interval that holds it with 95%.
"""

import argparse
import datetime
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overhead_cases import CASES, Case
from overhead_summary import Comparison, columns, compare, comparison_tables, target_line, verdict
from rich.console import Console
from shared import load_average, traceml_is_installed, write_result

from hf_efficient.estimate.statistics import alternating_orders
from hf_efficient.facts.environment import quieten_libraries

console = Console()


def main() -> None:
    """Measure the cases asked for, print and write them."""
    options = _options()
    quieten_libraries(debug=False)
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    if load is not None and load > 0.5:
        console.print(f"[yellow]This machine is busy (load average {load:.1f}): the intervals will be wide.[/]")
    cases = [_measure(CASES[name], options) for name in options.only or ("tiny", "short", "tiny_logs", "smollm2")]
    if options.json is not None:
        figures = {"load_average_at_start": load, "load_average_at_end": load_average(), "cases": cases}
        write_result(options.json, "overhead", started, figures, packages=["traceml-ai"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(CASES), help="default: all but gpu")
    parser.add_argument(
        "--rounds", type=int, help="rounds in one process; 0 for none; smollm2 takes turns, without rounds"
    )
    parser.add_argument("--process-rounds", type=int, help="rounds of a process each; 0 for none")
    parser.add_argument("--steps", type=int, help="steps measured per block in one process, a multiple of 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every block and every comparison")
    options = parser.parse_args()
    if options.steps is not None and (options.steps < 10 or options.steps % 10):
        parser.error(f"--steps {options.steps}: write a multiple of 10: ten steps make one figure")
    if "gpu" in (options.only or ()):
        import torch

        if not torch.cuda.is_available():
            parser.error("--only gpu: torch.cuda.is_available() is False here; run it on a machine with a CUDA GPU")
    return options


def _measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways of one case, printed; plain data for the file."""
    rounds = options.rounds if options.rounds == 0 or (case.rounds and options.rounds) else case.rounds
    process_rounds = case.process_rounds if options.process_rounds is None else options.process_rounds
    console.print(f"\n[bold]{case.name}: {case.what}[/]")
    target = None if case.target is None else asdict(case.target)
    told: dict[str, Any] = {"name": case.name, "what": case.what, "target": target}
    if rounds != 0:
        told["in_one_process"] = _in_one_process(case, rounds, options.steps or case.steps)
    if process_rounds:
        told["in_processes"] = _in_processes(case, process_rounds)
    if case.device == "cuda":
        told["synchronisations"] = _synchronisations(case)
    return told


def _in_one_process(case: Case, rounds: int | None, steps: int) -> dict[str, Any]:
    import torch
    from overhead_blocks import ARMS, prepared_model, run_block

    model = prepared_model(case)
    for arm in ARMS[1:]:
        run_block(case, arm, model, case.skip, 10)  # imports, and what torch builds on first use
    if rounds is None:
        how, blocks = f"In one process, a step each in turn, {steps} steps", _taking_turns(case, model, steps)
    else:
        how = f"In one process, {rounds} rounds of {steps} steps"
        blocks = _in_rounds(case, model, rounds, steps)
    comparisons = [compare(blocks, arm, "plain") for arm in ("efficient", "again")]
    kept = None if case.target is None else verdict(comparisons[0], case.target)
    console.print(comparison_tables(how, comparisons))
    if case.target is not None and kept is not None:
        console.print(target_line(case.target, kept))
    left = sorted({name for block in blocks["efficient"] for name in block["threads_left"]})
    if left:
        console.print(f"[yellow]Threads outlive their block and run beside the others': {', '.join(left)}[/]")
    return {
        "torch_threads": torch.get_num_threads(),
        "verdict": kept,
        "comparisons": [_plain(one) for one in comparisons],
        "blocks": columns(blocks),
    }


def _in_rounds(case: Case, model: Any, rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    from overhead_blocks import ARMS, run_block

    blocks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for index, order in enumerate(alternating_orders(ARMS, rounds)):
        for arm in order:
            _progress(f"{case.name}, in one process: round {index + 1} of {rounds}, {arm}")
            blocks[arm].append(run_block(case, arm, model, case.skip, steps).to_json())
    _progress("")
    return blocks


def _taking_turns(case: Case, model: Any, steps: int) -> dict[str, list[dict[str, Any]]]:
    from overhead_arms import run_turns
    from overhead_blocks import ARMS

    _progress(f"{case.name}, in one process, a step each in turn")
    tens = run_turns(case, ARMS, model, case.skip, steps)
    _progress("")
    return {arm: [ten.to_json() for ten in found] for arm, found in tens.items()}


def _in_processes(case: Case, rounds: int) -> dict[str, Any]:
    from overhead_arms import PROCESS_ARMS, train_in_process

    arms = PROCESS_ARMS if traceml_is_installed() else PROCESS_ARMS[:2]
    if len(arms) < len(PROCESS_ARMS):
        console.print("[yellow]TraceML is not measured: it is not installed (pip install -e '.[bench]').[/]")
    blocks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for index, order in enumerate(alternating_orders(arms, rounds)):
        for arm in order:
            _progress(f"{case.name}, a process each: round {index + 1} of {rounds}, {arm}")
            blocks[arm].append(train_in_process(case.name, arm, case.skip, case.process_steps))
    _progress("")
    pairs = [("efficient", "plain"), ("traceml", "launcher"), ("traceml", "plain")]
    comparisons = [compare(blocks, arm, against) for arm, against in pairs if arm in arms]
    console.print(comparison_tables(f"A process each, {rounds} rounds of {case.process_steps} steps", comparisons))
    return {"comparisons": [_plain(one) for one in comparisons], "blocks": columns(blocks)}


def _synchronisations(case: Case) -> dict[str, Any]:
    """Where the host waits for the device in 20 steps of either trainer."""
    from overhead_arms import SynchronisationCount
    from overhead_blocks import prepared_model, run_block

    model = prepared_model(case)
    found = {}
    for arm in ("plain", "efficient"):
        count = SynchronisationCount(case.skip, case.skip + 20)
        run_block(case, arm, model, case.skip, 20, callbacks=[count])
        found[arm] = count.found
    added = found["efficient"] - found["plain"]
    counts = ", ".join(f"{arm} {sum(where.values())}" for arm, where in found.items())
    told = f"none added ({counts})" if not added else f"added ({counts}): {dict(added)}"
    console.print(f"Synchronisations in 20 steps: {told}")
    return {**{arm: dict(where) for arm, where in found.items()}, "added": dict(added)}


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {**asdict(comparison), "differs": comparison.differs}


def _progress(text: str) -> None:
    """Without a thread of its own, which a spinner has: it would run beside what is measured."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
