"""``python -m hf_efficient.trials.worker FOLDER``: does the job in ``job.json``; ``result.json`` has what came of it.

The one entry point of all trainings that isolate, bench and tune start. What the user can correct is left as words.
"""

import dataclasses
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hf_efficient.early  # noqa: F401  first of all
from hf_efficient.errors import HfEfficientError, first_line
from hf_efficient.facts.environment import end_with_parent, quieten_libraries
from hf_efficient.launch.exits import explained_faults
from hf_efficient.launch.machine import go_offline_without_hub, keep_freed_memory
from hf_efficient.recipe.load import load_recipe
from hf_efficient.run_dir.json_file import write_whole
from hf_efficient.trials.process import RESULT, RunFailed, job_in

_TASKS = {
    "variant": ("hf_efficient.trials.variant_runs", "measured"),
    "prepare": ("hf_efficient.trials.prepare", "prepare"),
    "arm": ("hf_efficient.trials.arm_runs", "train_arm"),
    "trial": ("hf_efficient.trials.trial_run", "trained"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    (name,) = sys.argv[1:] if arguments is None else arguments
    folder = Path(name)
    found: dict[str, Any]
    try:
        found = {"result": _done(folder)}
    except HfEfficientError as error:
        found = {"failure": str(error), "kind": "input"}
    except RunFailed as error:
        found = {"failure": str(error), "kind": error.kind}
    except MemoryError:
        found = {"failure": "out of the host's memory", "kind": "fault"}
    except Exception as error:  # noqa: BLE001  whatever fails in a training is its result
        found = {"failure": f"{type(error).__name__}: {first_line(error)}", "kind": "fault"}
    if int(os.environ.get("RANK", "0")) == 0:
        write_whole(folder / RESULT, json.dumps(found, default=dataclasses.asdict))
    return 0 if "result" in found else 1


def _done(folder: Path) -> Any:
    quieten_libraries(debug=False)
    job = job_in(folder)
    recipe = load_recipe(job.recipe, job.overrides)
    go_offline_without_hub(recipe)
    if job.task != "arm":
        keep_freed_memory()  # which peers do not have
    module, name = _TASKS[job.task]
    with explained_faults(str(folder)):
        return getattr(importlib.import_module(module), name)(recipe, folder, **job.options)


if __name__ == "__main__":
    end_with_parent()  # the launcher's process, where there are several
    sys.exit(main())
