"""For how long does a save hold the training, written at once and in the background?

    python benchmarks/saves.py [--saves 4] [--rounds 2] [--steps-between 20] [--json FILE]

The quickstart's model, all weights trained in float32: a checkpoint of weights and AdamW's state. Runs that differ in
`checkpoints.background` alone take turns; their records say for how many seconds each save held the training, the last
one of a run left out, whose end waits for it. Both sync the files to the disk and hash them (`train.save_total_limit`
is 1). Between two saves are so many steps that the background is done with one before the next.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from shared import load_average, run_to_end, write_result

MOST = 0.25
"""The share of the time of a save at once for which one in the background may hold the training."""

_RECIPE = """
extends: quickstart/qlora
adapter: {method: full, r: null, alpha: null, quantization: null, fused: null}
data: {eval: null, max_eval_examples: null, max_train_examples: 500}
train: {max_length: 64, per_device_train_batch_size: 1, per_device_eval_batch_size: null, eval_on_start: null,
  save_strategy: steps, save_total_limit: 1, warmup_steps: 1, learning_rate: 1.0e-5, logging_steps: 10}
evaluate: {metrics: null, generate: null}
efficiency: {plan: false, preflight: false}
output_dir: out
"""
_SECONDS = 1800.0


def held_seconds(folder: Path, recipe: Path, saves: int, between: int, *, background: bool) -> tuple[list[float], int]:
    """Of all saves of a run but the last; and the bytes of a checkpoint."""
    steps = (saves + 1) * between
    changes = [f"train.max_steps={steps}", f"train.save_steps={between}", f"checkpoints.background={background}"]
    main = "from hf_efficient.cli.app import main; main()"
    command = [sys.executable, "-c", main, "train", str(recipe), f"output_dir={folder}", *changes]
    here = Path(__file__).resolve().parent.parent
    path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    code, said = run_to_end(command, recipe.parent, _SECONDS, {**os.environ, "PYTHONPATH": path})
    if code:
        raise SystemExit(f"the run ended with {code}:\n{said[-2000:]}")
    lines = map(json.loads, (folder / "efficiency/spans.jsonl").read_text(encoding="utf-8").splitlines())
    found = [line["seconds"] for line in lines if line.get("kind") == "save"]
    last = folder / f"checkpoint-{steps}"
    return found[:-1], sum(path.stat().st_size for path in last.rglob("*") if path.is_file())


def main() -> None:
    """Run both ways in turn, print the table, and exit with 1 where the background holds the training for longer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--saves", type=int, default=4, help="that count, of each run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each way")
    parser.add_argument("--steps-between", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    held: dict[str, list[float]] = {"at once": [], "in the background": []}
    size = 0
    for number in range(options.rounds):
        for name in list(held)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                recipe = Path(folder) / "full.yaml"
                recipe.write_text(_RECIPE, encoding="utf-8")
                background = name == "in the background"
                output = Path(folder) / "out"
                found, size = held_seconds(output, recipe, options.saves, options.steps_between, background=background)
                held[name] += found
                print(f"{name}: {', '.join(f'{one:.3f} s' for one in found)}", flush=True)
    medians = {name: statistics.median(found) for name, found in held.items()}
    ratio = medians["in the background"] / medians["at once"]
    table = Table(title=f"A checkpoint of {size / 1e9:.2f} GB holds the training; in the background {ratio:.3f} of it")
    for name in ("written", "median", "least", "most", "saves"):
        table.add_column(name)
    for name, found in held.items():
        table.add_row(name, *(f"{one:.3f} s" for one in (medians[name], min(found), max(found))), str(len(found)))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json is not None:
        figures = {"load_average_before": load, "checkpoint_bytes": size, "held_seconds": held, "ratio": ratio}
        write_result(options.json, "saves", started, figures, ["safetensors"])
    if ratio > MOST:
        sys.exit(1)


if __name__ == "__main__":
    main()
