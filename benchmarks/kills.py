"""Is anything lost when a process is killed, whatever it is doing? SIGKILL at random moments, against a whole run.

    python benchmarks/kills.py [--only none ddp zero2 background] [--kills 20] [--json FILE]

A tiny Llama on one process, on two under DDP, on two under DeepSpeed's ZeRO-2, and on one that writes its checkpoints
in the background, by `hf-efficient train --keep-going`. Each trains once undisturbed, and once while
``kills_process.py`` kills one of its processes again and again: in the forward, the backward, a save, the removal of an
old checkpoint, or at any moment. The run has to come back by itself every time, and the losses of all its parts,
joined, have to be those of the whole run. FILE keeps what it holds of other strategies, so that each may have a call of
its own.
"""

import argparse
import datetime
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kills_process import PLACES
from parity import make_inputs, write_recipe
from rich.console import Console
from rich.table import Table
from shared import load_average, run_to_end, write_result

STRATEGIES: dict[str, tuple[str, ...]] = {
    "none": ("none",),
    "ddp": ("ddp",),
    "zero2": ("zero2",),
    "background": ("none", "checkpoints.background=true"),
}
"""The strategy of ``parity.py``, and what is changed in its recipe."""
TOLERANCES = {"none": 0.0, "ddp": 0.0, "zero2": 1e-6, "background": 0.0}
"""Relative, of a step's loss."""

_SAVE_STEPS = 3
_SECONDS = 1800.0


@dataclass(frozen=True)
class Kill:
    """``step``: after which it was; ``newest``: the newest checkpoint that was whole at that moment, 0 for none."""

    strategy: str
    place: str
    step: int
    newest: int

    @property
    def lost(self) -> int:
        return self.step - self.newest


@dataclass(frozen=True)
class Outcome:
    """``worst``: largest relative difference of a step's loss; None where the run did not end."""

    strategy: str
    kills: list[Kill]
    starts: int
    worst: float | None
    ended_with: int
    said: str = ""

    @property
    def holds(self) -> bool:
        return self.worst is not None and self.worst <= TOLERANCES[self.strategy] and self.starts == len(self.kills)


def planned_kills(count: int, processes: int, seed: int) -> tuple[list[tuple[str, int, int]], int]:
    """Place, step and rank of each, the places in turn and the steps rising; and the steps that the run needs."""
    chosen, step, found = random.Random(seed), _SAVE_STEPS, []
    for number in range(count):
        step += chosen.randint(1, 3)
        place = PLACES[number % len(PLACES)]
        on_main = place in ("before the manifest", "pruning")
        found.append((place, step, 0 if on_main else chosen.randrange(processes)))
    return found, step + 2 * _SAVE_STEPS


def run_kills(strategy: str, folder: Path, count: int, seed: int = 0) -> Outcome:
    """Train undisturbed, then with kills, in a folder that holds ``parity.py``'s inputs."""
    kind, *changes = STRATEGIES[strategy]
    kills, steps = planned_kills(count, 1 if kind == "none" else 2, seed)
    saves = {"save_strategy": "steps", "save_steps": _SAVE_STEPS, "save_total_limit": 1, "max_steps": steps}
    recipe = write_recipe(kind, "lora-fp32", folder, **saves)
    whole, _ = _trained([str(recipe), *changes], folder, [], folder / strategy / "whole")
    marks = folder / strategy / "marks"
    output = folder / strategy / "killed"
    code, said = _trained([str(recipe), *changes], folder, kills, output, marks)
    held = [json.loads(path.read_text()) for path in sorted(marks.glob("*.json"), key=lambda one: int(one.stem))]
    done = [Kill(strategy, one["place"], one["step"], max(one["whole"], default=0)) for one in held]
    worst = None
    if whole == 0 and code == 0:
        pairs = zip(_losses(output), _losses(folder / strategy / "whole"), strict=True)
        worst = max(abs(one - other) / abs(other) for one, other in pairs)
    errors = [line for line in said.splitlines() if line.startswith("error: ")]  # of starts that nobody killed, too
    return Outcome(strategy, done, said.count("Starting again in"), worst, code, "\n".join(errors))


def _trained(
    recipe: Sequence[str], folder: Path, kills: Sequence[tuple[str, int, int]], output: Path, marks: Path | None = None
) -> tuple[int, str]:
    marks = marks or output.parent / "no-marks"
    marks.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "KILLS": json.dumps(kills)}
    environment |= {"KILLS_MARKS": str(marks), "HF_EFFICIENT_CACHE": str(folder / "cache")}
    command = [sys.executable, str(here / "kills_process.py"), "train", *recipe, f"output_dir={output}"]
    return run_to_end([*command, "--keep-going"], folder, _SECONDS, environment)


def _losses(output: Path) -> list[float]:
    state = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))
    return [entry["loss"] for entry in state["log_history"] if "loss" in entry]


def kill_table(outcomes: Sequence[Outcome]) -> Table:
    """By strategy and place."""
    table = Table(title="Killed by SIGKILL, and come back by itself")
    for name in ("strategy", "killed in"):
        table.add_column(name)
    for name in ("kills", "with a whole checkpoint", "steps done again, mean", "largest difference of a loss"):
        table.add_column(name, justify="right")
    for outcome in outcomes:
        worst = "the run did not end" if outcome.worst is None else f"{outcome.worst:.1e}"
        for place, count in Counter(kill.place for kill in outcome.kills).items():
            those = [kill for kill in outcome.kills if kill.place == place]
            again = sum(kill.lost for kill in those) / count
            whole = sum(kill.newest > 0 for kill in those)
            table.add_row(outcome.strategy, place, str(count), str(whole), f"{again:.1f}", worst)
        table.add_section()
    return table


def main() -> None:
    """Run the strategies asked for, print the table, and exit with 1 where something is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--kills", type=int, default=20, help="of each strategy")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        make_inputs(Path(name))
        for strategy in options.only:
            outcome = run_kills(strategy, Path(name), options.kills)
            outcomes.append(outcome)
            made = f"{len(outcome.kills)} kills, {outcome.starts} starts after them, ended with {outcome.ended_with}"
            print(f"{strategy}: {made}. {outcome.said}", flush=True)
    Console(width=None if sys.stdout.isatty() else 160).print(kill_table(outcomes))
    if options.json is not None:
        held = json.loads(options.json.read_text(encoding="utf-8")) if options.json.is_file() else {}
        new = {one.strategy: {**asdict(one), "load_average_before": load} for one in outcomes}
        for figure in new.values():
            del figure["said"]
        figures = {"outcomes": {**held.get("outcomes", {}), **new}}
        write_result(options.json, "kills", started, figures, ["deepspeed"])
    if not all(one.holds and len(one.kills) == options.kills for one in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
