"""``python -m hf_efficient.bench.worker``: prepares a comparison, or trains one arm of it, in a process of its own.

``worker prepare --folder DIR --steps 8 [--random-weights] RECIPE [a.b=value ...]`` writes ``DIR/work.json``;
``worker ARM --folder DIR`` writes ``DIR/figures.json``. What the user can correct is written to ``DIR/failure.txt``,
without what libraries print.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import hf_efficient.early  # noqa: F401  first of all
from hf_efficient.errors import HfEfficientError
from hf_efficient.facts.libraries import quieten_libraries
from hf_efficient.launch.machine import go_offline_without_hub
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.bench import Work

WORK, FIGURES, FAILURE = "work.json", "figures.json", "failure.txt"

TRAINED = ("trl", "trl_packed", "bare")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    folder = Path(options.folder)
    quieten_libraries(debug=False)
    try:
        if options.task == "prepare":
            left, name = dataclasses.asdict(_prepared(options, folder)), WORK
        else:
            left, name = _trained(options.task, folder), FIGURES
    except HfEfficientError as error:
        (folder / FAILURE).write_text(str(error), encoding="utf-8")
        return error.exit_code
    (folder / name).write_text(json.dumps(left), encoding="utf-8")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hf_efficient.bench.worker")
    parser.add_argument("task", choices=["prepare", *TRAINED])
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--padded-rows", type=int)
    parser.add_argument("--random-weights", action="store_true")
    return parser.parse_intermixed_args(arguments)


def _prepared(options: argparse.Namespace, folder: Path) -> Work:
    recipe = load_recipe(options.recipe, options.overrides)
    go_offline_without_hub(recipe)
    from hf_efficient.bench.prepare import prepare

    random_weights, padded_rows = options.random_weights, options.padded_rows
    return prepare(recipe, folder, options.steps, random_weights=random_weights, padded_rows=padded_rows)


def _trained(name: str, folder: Path) -> dict[str, Any]:
    work = msgspec.json.decode((folder.parent / WORK).read_bytes(), type=Work)
    recipe = load_recipe(work.recipe, work.overrides)
    go_offline_without_hub(recipe)
    from hf_efficient.bench.training import train_by_hand, train_by_trl

    if name == "bare":
        return train_by_hand(recipe)
    return train_by_trl(recipe, work, folder / "run", packed=name == "trl_packed")


if __name__ == "__main__":
    sys.exit(main())
