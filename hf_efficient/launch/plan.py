"""The plan before the run: made on the main process once the data are there, stored, and said where it does not fit."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.errors import HfEfficientError, SetupError, first_line
from hf_efficient.launch.account import phase, state
from hf_efficient.launch.listener import RunListener
from hf_efficient.planning.run_plan import plan_run
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.planned_run import RunPlan
from hf_efficient.units import size

if TYPE_CHECKING:
    from trl import SFTConfig

__all__ = ["PLAN_JSON", "leave_unplanned", "plan_before", "write_plan"]

logger = logging.getLogger(__name__)

PLAN_JSON = "plan.json"
"""In the folder of the records."""


def plan_before(
    recipe: Recipe,
    args: SFTConfig,
    data: SftData | PreferenceData,
    price_usd_per_hour: float | None,
    listener: RunListener,
) -> RunPlan | None:
    """The plan of a run; None where there is none, which the account says unless the recipe wants it so.

    A fault in the planning is one warning, and the run goes on.

    Raises:
        SetupError: the weights that a rank holds are alone more than the memory of the GPU that is here.
    """
    if not recipe.efficiency.plan or args.process_index != 0:
        return None
    try:
        with phase(recipe, "planning"):
            planned = plan_run(recipe, args, data, price_usd_per_hour)
    except HfEfficientError as error:
        logger.warning("The run is not planned: %s", first_line(error))
        leave_unplanned(recipe, first_line(error))
        return None
    except Exception as error:
        logger.warning("The run is not planned, because of a fault; it goes on.", exc_info=True)
        leave_unplanned(recipe, f"the planning failed: {type(error).__name__}: {first_line(error)}")
        return None
    state(recipe, "plan", dataclasses.asdict(planned.run))
    _judge(planned, recipe, listener)
    return planned


def leave_unplanned(recipe: Recipe, why: str) -> None:
    """Let the account say why there is no plan."""
    if recipe.efficiency.plan:
        state(recipe, "plan", {"missing": [{"what": "predictions", "why": why}]})


def write_plan(planned: RunPlan | None, recipe: Recipe, directory: Path) -> None:
    """Store it beside the records; a file that cannot be written is one warning.

    Args:
        planned: None: nothing is written.
        recipe: whether the run is recorded.
        directory: the ``efficiency`` folder.
    """
    if planned is None or not recipe.efficiency.record_steps:
        return
    path = directory / PLAN_JSON
    temporary = path.with_name(f".{PLAN_JSON}")
    try:
        temporary.write_text(json.dumps(dataclasses.asdict(planned), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.warning("%s cannot be written: %s. The run goes on.", path, error.strerror or error)


def _judge(planned: RunPlan, recipe: Recipe, listener: RunListener) -> None:
    if planned.run.fits is not False:
        return
    (gpu,) = planned.plan.gpus
    ranks = planned.plan.ranks
    each = "" if ranks is None or ranks.count == 1 else f" on each of {ranks.count} GPUs"
    remedy = f"hf-efficient plan {recipe.path or 'RECIPE'} --advise"
    weights, usable = planned.plan.memory.model_bytes, gpu.usable_memory_bytes
    if weights > usable:
        raise SetupError(
            f"the weights alone are {size(weights)}{each}, and {gpu.name} has {size(usable)}: `{remedy}` tells what "
            "would fit. `efficiency.plan: false` runs it all the same."
        )
    if gpu.needed_bytes <= usable and gpu.notes:
        listener.stage("Warning", f"{gpu.name}: {gpu.notes[0]}")
        return
    listener.stage(
        "Warning",
        f"it may run out of memory: planned for {size(gpu.needed_bytes)}{each}, and {gpu.name} has "
        f"{size(usable)}. `{remedy}` tells what would fit.",
    )
