"""``python -m hf_efficient.tune.worker``: one short training; ``trial.json`` has its figures, or why it failed."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.facts.libraries import quieten_libraries
from hf_efficient.launch.exits import explained_faults
from hf_efficient.launch.machine import go_offline_without_hub, keep_freed_memory
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.tune.trial import TRIAL, NoRoom, Wanted, short


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hf_efficient.tune.worker")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--wanted", type=lambda text: msgspec.json.decode(text, type=Wanted), required=True)
    parser.add_argument("--changes", type=json.loads, default=[])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args(arguments)
    try:
        found: dict[str, Any] = {"run": _measured(options)}
    except NoRoom as error:
        found = {"no_room": str(error)}
    except HfEfficientError as error:
        found = {"failure": str(error)}
    except Exception as error:  # noqa: BLE001  whatever fails in a trial is its result
        found = {"failure": f"{type(error).__name__}: {first_line(error)}"}
    write_whole(options.folder / TRIAL, json.dumps(found))
    return 0 if "run" in found else 1


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    wanted: Wanted = options.wanted
    asked = with_accumulation(load_recipe(options.recipe, options.overrides), 1)
    changed = with_accumulation(load_recipe(options.recipe, [*options.overrides, *options.changes]), 1)
    recipe = short(changed, options.folder, wanted)
    quieten_libraries(debug=False)
    go_offline_without_hub(recipe)
    keep_freed_memory()
    with explained_faults(recipe.output_dir):
        from hf_efficient.tune.measuring import trained

        return trained(recipe, short(asked, options.folder, wanted), changed, wanted)


if __name__ == "__main__":
    sys.exit(main())
