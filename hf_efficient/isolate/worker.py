"""``python -m hf_efficient.isolate.worker``: measures one variant; ``measurement.json`` holds the result or failure."""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hf_efficient.early  # noqa: F401  first of all
from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.facts.libraries import quieten_libraries
from hf_efficient.isolate.variants import VARIANTS, Setup, in_folder, varied
from hf_efficient.launch.exits import explained_faults
from hf_efficient.launch.machine import go_offline_without_hub, keep_freed_memory
from hf_efficient.launch.started import started_processes
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.records.isolation import VariantMeasurement
from hf_efficient.run_dir.json_file import write_whole

MEASUREMENT = "measurement.json"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    folder = Path(options.folder)
    try:
        found = _measured(options, folder)
    except HfEfficientError as error:
        return _leave(folder, {"failure": str(error)}, 2)
    except MemoryError:
        return _leave(folder, {"failure": "out of the host's memory"}, 1)
    except Exception as error:
        if options.debug:
            raise
        return _leave(folder, {"failure": f"{type(error).__name__}: {first_line(error)}"}, 1)
    return _leave(folder, dataclasses.asdict(found), 0)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hf_efficient.isolate.worker")
    parser.add_argument("--variant", required=True, choices=[one.name for one in VARIANTS])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    return parser.parse_intermixed_args(arguments)


def _measured(options: argparse.Namespace, folder: Path) -> VariantMeasurement:
    variant = next(one for one in VARIANTS if one.name == options.variant)
    processes = max(options.share, started_processes(os.environ))
    original = in_folder(with_accumulation(load_recipe(options.recipe, options.overrides), processes), folder)
    recipe = varied(original, variant, options.warm_up + options.steps)
    quieten_libraries(debug=options.debug)
    go_offline_without_hub(recipe)
    keep_freed_memory()
    with explained_faults(str(folder)):
        from hf_efficient.isolate.measuring import MEASURES

        return MEASURES[variant.name](Setup(recipe, original, options.steps, options.warm_up, options.share))


def _leave(folder: Path, content: dict[str, Any], code: int) -> int:
    if int(os.environ.get("RANK", "0")) == 0:
        write_whole(folder / MEASUREMENT, json.dumps(content))
    return code


if __name__ == "__main__":
    sys.exit(main())
