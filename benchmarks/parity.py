"""Do all strategies train alike? The loss of every step, against one process with the same global batch.

    python benchmarks/parity.py [--only STRATEGY ...] [--steps 50] [--json FILE]

A tiny Llama with random weights on two CPU processes (gloo), each strategy in a launch of its own, which its recipe
generates; FSDP2 through the door that a run on GPUs does not use (``model/on_cpu.py``).
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from parity_inputs import make_inputs
from parity_runs import REFERENCE, STRATEGIES, losses_of, run_strategy
from parity_table import TOLERANCES, Parity, compared, parity_table
from results import load_average, write_result
from rich.console import Console


def main() -> None:
    """Run the strategies asked for, print the table, and exit with 1 where one does not hold."""
    options = _options()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    rows: list[Parity] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder)
        run_strategy(REFERENCE, folder, options.steps)
        reference = losses_of(REFERENCE, folder)
        for strategy in options.only or [one for one in STRATEGIES if one != REFERENCE]:
            run_strategy(strategy, folder, options.steps)
            rows += compared(strategy, losses_of(strategy, folder), reference)
    Console(width=None if sys.stdout.isatty() else 120).print(parity_table(rows, options.steps))
    if options.json is not None:
        figures = {
            "steps": options.steps,
            "processes": 2,
            "tolerances": TOLERANCES,
            "load_average_at_start": load,
            "rows": [row._asdict() for row in rows],
        }
        write_result(options.json, "parity", started, figures, packages=["deepspeed", "accelerate", "peft"])
    if not all(row.holds for row in rows):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[one for one in STRATEGIES if one != REFERENCE])
    parser.add_argument("--steps", type=int, default=50, help="optimizer steps of each training")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
