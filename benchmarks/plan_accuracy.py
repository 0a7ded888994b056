"""How near is the memory that a plan predicts to what the training takes?

    python benchmarks/plan_accuracy.py [--case WORDS] [--json FILE]

Of each case the plan's simulation predicts the peak of allocated bytes over two optimizer steps; then the same trainer
trains a real model of that shape, with random weights, and the profiler's allocation events tell the real peak. The two
share the recipe and nothing of the measurement.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plan_accuracy_cases import CASES, MODELS, Case
from results import load_average, write_result
from rich.console import Console
from rich.table import Table

from hf_efficient.facts.libraries import quieten_libraries

console = Console()


def main() -> None:
    """Measure the cases asked for, print and write them."""
    options = _options()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    chosen = [case for case in CASES if not options.case or all(word in case.name for word in options.case.split())]
    found = []
    for case in chosen:
        found.append(_measured(case))
        console.print(_line(found[-1]), highlight=False)
    errors = [abs(one["error"]) for one in found]
    summary = {"cases": len(found), "median_error": statistics.median(errors), "worst_error": max(errors)}
    console.print(_table(found))
    console.print(f"median error {100 * summary['median_error']:.2f}%, worst {100 * summary['worst_error']:.2f}%")
    if options.json is not None:
        write_result(options.json, "plan_accuracy", started, {**summary, "load": load_average(), "found": found})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", metavar="WORDS", help="only cases whose name holds all of these words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every case")
    return parser.parse_args()


def _measured(case: Case) -> dict[str, Any]:
    from plan_accuracy_real import real_peak

    from hf_efficient.planning.model_config import model_config
    from hf_efficient.planning.simulation import planned_memory, simulate

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(case, Path(folder))
        config = model_config(recipe.model)
        began = time.perf_counter()
        memory = planned_memory(simulate(recipe, config, case.length, on_gpu=False))
        seconds = time.perf_counter() - began
        real = real_peak(recipe, config, case.length)
    return {
        "name": case.name,
        "predicted_bytes": memory.peak_allocated_bytes,
        "measured_bytes": real,
        "error": memory.peak_allocated_bytes / real - 1,
        "peak_phase": memory.peak_phase,
        "plan_seconds": round(seconds, 2),
        "case": asdict(case),
    }


def recipe_of(case: Case, folder: Path) -> Any:
    """The recipe of a case, written into a folder."""
    import json

    import yaml

    from hf_efficient.recipe.load import load_recipe

    model = case.model
    if model in MODELS:
        (folder / "config.json").write_text(json.dumps(MODELS[model]))
        model = str(folder)
    section = {"id": model, "dtype": case.dtype}
    if case.attention is not None:
        section["attn_implementation"] = case.attention
    recipe = {
        "name": "plan-accuracy",
        "model": section,
        "adapter": {"method": case.method, **case.adapter},
        "data": _data(case),
        "train": {"max_length": case.length, **case.train},
        "output_dir": str(folder / "out"),
    }
    if case.metrics is not None:
        recipe["evaluate"] = {"metrics": list(case.metrics)}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return load_recipe(str(path))


def _data(case: Case) -> dict[str, Any]:
    own = {"path": "builtin:python-docstrings"}
    return {"train": [own]} if case.metrics is None else {"train": [own], "eval": [{**own, "split": "eval"}]}


def _line(one: dict[str, Any]) -> str:
    return f"{100 * one['error']:+7.3f}%  {one['measured_bytes'] / 2**20:9.1f} MiB  {one['name']}"


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("case", "predicted", "measured", "error", box=None)
    for one in sorted(found, key=lambda each: -abs(each["error"])):
        table.add_row(
            one["name"],
            f"{one['predicted_bytes'] / 2**20:.1f} MiB",
            f"{one['measured_bytes'] / 2**20:.1f} MiB",
            f"{100 * one['error']:+.3f}%",
        )
    return table


if __name__ == "__main__":
    main()
