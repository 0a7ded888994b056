"""What does EfficientTrainer cost where several ranks train together, against one?

    python benchmarks/overhead_ranks.py [--ranks N] [--rounds N] [--steps K] [--json FILE]

Each rank is a process under DDP on gloo, computing with one thread. In all of them at once ``Trainer``, ``Trainer``
once more and ``EfficientTrainer`` alternate by blocks of steps on the tiny model of ``overhead.py``, whose step is
almost nothing but Python; told are the blocks of rank 0, whose steps end with those of the others. The same is done
with one process, so that what is told last is what a rank more costs.

    python overhead_ranks.py rank FOLDER ROUNDS STEPS      is such a process; launched with its environment by the first
"""

import argparse
import datetime
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from overhead_cases import CASES
from overhead_summary import columns, compare, comparison_tables
from rich.console import Console
from shared import free_port, load_average, run_to_end, write_result

from hf_efficient.estimate.statistics import alternating_orders
from hf_efficient.facts.environment import quieten_libraries

_CASE = CASES["tiny"]
_SECONDS = 3600
_FILE = "blocks.json"


def main() -> None:
    """Measure with one process and with several, print and write both."""
    options = _options()
    console = Console()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    told: dict[str, Any] = {}
    for ranks in (1, options.ranks):
        blocks = _measured(ranks, options.rounds, options.steps)
        comparisons = [compare(blocks, arm, "plain") for arm in ("efficient", "again")]
        console.print(
            comparison_tables(f"{ranks} ranks, {options.rounds} rounds of {options.steps} steps", comparisons)
        )
        told[f"ranks_{ranks}"] = {"comparisons": [asdict(one) for one in comparisons], "blocks": columns(blocks)}
    if options.json is not None:
        figures = {"load_average_at_start": load, "load_average_at_end": load_average(), **told}
        write_result(options.json, "overhead_ranks", started, figures)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2, help="processes; no more than there are cores")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--steps", type=int, default=300, help="measured per block, a multiple of 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every block and every comparison")
    options = parser.parse_args()
    if options.steps < 10 or options.steps % 10:
        parser.error(f"--steps {options.steps}: write a multiple of 10: ten steps make one figure")
    return options


def _measured(ranks: int, rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Blocks of rank 0, by arm.

    Raises:
        RuntimeError: a process failed; tells the end of what they printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "accelerate.commands.launch", "--quiet", "--cpu"),
            *("--num_machines=1", f"--num_processes={ranks}", "--mixed_precision=no", "--dynamo_backend=no"),
            *("--num_cpu_threads_per_process=1", f"--main_process_port={free_port()}"),
            *(str(Path(__file__).resolve()), "rank", folder, str(rounds), str(steps)),
        ]
        status, printed = run_to_end(command, folder, _SECONDS)
        result = Path(folder, _FILE)
        if status != 0 or not result.is_file():
            raise RuntimeError(f"{ranks} ranks ended with {status}: {printed[-3000:]}")
        found: dict[str, list[dict[str, Any]]] = json.loads(result.read_text(encoding="utf-8"))
        return found


def _rank(folder: Path, rounds: int, steps: int, environment: Mapping[str, str]) -> None:
    """What each process does: the same blocks in the same order as all the others."""
    from overhead_blocks import ARMS, prepared_model, run_block

    quieten_libraries(debug=False)
    model = prepared_model(_CASE)
    for arm in ARMS:
        run_block(_CASE, arm, model, _CASE.skip, 10)  # imports, and what torch builds on first use
    blocks: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for order in alternating_orders(ARMS, rounds):
        for arm in order:
            blocks[arm].append(run_block(_CASE, arm, model, _CASE.skip, steps).to_json())
    if environment.get("RANK", "0") == "0":
        (folder / _FILE).write_text(json.dumps(blocks), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        import os

        _rank(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), os.environ)
    else:
        main()
