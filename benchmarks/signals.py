"""How long is a run's end, from a signal or a stop file to the last process, with a checkpoint of its last step?

    python benchmarks/signals.py [--only SIGTERM stop ...] [--processes 1 2] [--phases forward ...] [--json FILE]

A tiny Llama on one process, and on two under DDP, by `hf-efficient train`. ``signals_process.py`` holds rank 0 in a
phase until it was asked, and for half a second more, which counts.
"""

import argparse
import datetime
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from parity import make_inputs, write_recipe
from rich.console import Console
from rich.table import Table
from shared import load_average, write_result
from signals_process import PHASES

from hf_efficient.launch.exits import ended
from hf_efficient.run_dir.checkpoints import checkpoints, fault_of

ASKED = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "stop")
"""Signals, and the stop file."""
MOST_SECONDS = 10.0
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class End:
    """``seconds``: from the signal to the end of all processes; ``saved``: names of its whole checkpoints."""

    asked: str
    phase: str
    processes: int
    seconds: float
    code: int
    saved: list[str]
    said: str

    @property
    def has_saved(self) -> bool:
        """After the last step that it names, with the code that a scheduler knows, and nothing half-written."""
        last = self.saved[-1].removeprefix("checkpoint-") if self.saved else "none"
        return self.code == (130 if self.asked == "SIGINT" else 143) and f" after step {last} of " in self.said


def ask(asked: str, phase: str, processes: int, folder: Path) -> End:
    """Train in ``folder``, which holds ``parity.py``'s inputs, until asked to stop in a phase."""
    name = f"{asked}-{phase}-{processes}"
    marks, output, here = folder / f"{name}.marks", folder / name, Path(__file__).resolve().parent
    marks.mkdir()
    each = {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 2, "eval_strategy": "steps", "eval_steps": 3}
    recipe = write_recipe("none" if processes == 1 else "ddp", "lora-fp32", folder, max_steps=100_000, **each)
    words = [str(recipe), f"output_dir={output}", "data.eval_fraction=0.2", "efficiency.preflight=false"]
    path = os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SIGNALS_PHASE": phase}
    environment |= {"SIGNALS_MARKS": str(marks), "HF_EFFICIENT_CACHE": str(folder / "cache")}
    command = [sys.executable, str(here / "signals_process.py"), "train", *words]
    run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with ended(run):
        until = time.monotonic() + _PATIENCE_SECONDS
        while run.poll() is None and not (marks / "in").exists() and time.monotonic() < until:
            time.sleep(0.01)
        began = time.monotonic()
        if asked == "stop":
            (output / "stop").touch()
        else:
            run.send_signal(getattr(signal, asked))
        (marks / "asked").touch()
        _, said = run.communicate(timeout=_PATIENCE_SECONDS)
        seconds = time.monotonic() - began
    there = checkpoints(output)
    saved = [path.name for path in there if fault_of(path, hashes=True) is None]
    return End(asked, phase, processes, seconds, run.returncode, saved if len(saved) == len(there) else [], said)


def main() -> None:
    """Ask in every phase, print the table, and exit with 1 where an end takes too long or leaves no checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=ASKED, default=list(ASKED))
    parser.add_argument("--processes", nargs="+", type=int, choices=(1, 2), default=[1, 2])
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    started, load, ends = datetime.datetime.now(datetime.timezone.utc), load_average(), list[End]()
    table = Table("asked by", "processes", *options.phases, title="Seconds to the end; - where no checkpoint is left")
    with tempfile.TemporaryDirectory() as name:
        make_inputs(Path(name))
        for asked in options.only:
            for processes in options.processes:
                row = [ask(asked, phase, processes, Path(name)) for phase in options.phases]
                ends += row
                lasts = [one.said.strip().rpartition("\n")[2] for one in row]
                cells = [
                    f"{one.seconds:.1f}" if one.has_saved else f"- {last}" for one, last in zip(row, lasts, strict=True)
                ]
                table.add_row(asked, str(processes), *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    held = [one.has_saved and one.seconds <= MOST_SECONDS for one in ends]
    print(f"{sum(held)} of {len(held)} with a checkpoint within {MOST_SECONDS:g} s")
    if options.json is not None:
        told = [{**asdict(one), "said": "", "has_saved": one.has_saved} for one in ends]
        write_result(options.json, "signals", started, {"load_average_before": load, "ends": told})
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
