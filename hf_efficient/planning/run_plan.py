"""The plan of a run that begins: the batches that it will see, on the device that is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.estimate.energy import energy_from_tdp
from hf_efficient.estimate.roofline import step_time
from hf_efficient.estimate.roofs import cpu_roofs
from hf_efficient.facts.accelerators import Accelerator, accelerator_of_device
from hf_efficient.facts.environment import cpu_model
from hf_efficient.planning.demand import demand_of
from hf_efficient.planning.gpu import Demand
from hf_efficient.planning.held import held_by_category
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.plan import plan_of
from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.planning.run_data import planned_data
from hf_efficient.planning.run_shapes import RunShapes, rows_of, run_shapes
from hf_efficient.planning.shaped import rehearse_shapes, shape_remarks
from hf_efficient.profilers.calibration_files import load_calibration
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import Plan, PlannedRun, RunPlan

if TYPE_CHECKING:
    from trl import SFTConfig


def plan_run(
    recipe: Recipe, args: SFTConfig, data: SftData | PreferenceData, price_usd_per_hour: float | None
) -> RunPlan:
    """Rehearse the run's largest micro-batch; nothing of the process is different afterwards.

    Args:
        recipe: the recipe.
        args: of the run.
        data: of the run.
        price_usd_per_hour: of everything that the run occupies; None where it is not known.

    Raises:
        HfEfficientError: what the run itself would refuse.
    """
    shapes = run_shapes(args, rows_of(data, args), args.world_size, at_end=recipe.evaluate.at_end)
    on_gpu = args.device.type != "cpu"
    rehearsal = rehearse_shapes(recipe, model_config(recipe.model), shapes, on_gpu=on_gpu, processes=args.world_size)
    known = _accelerator(args.device)
    assumptions = shape_remarks(shapes)
    if not on_gpu and args.world_size > 1:
        assumptions.append("what processes on CPUs exchange takes no time in it: how fast that is, is not known")
    demand = demand_of(recipe, rehearsal, shapes, args.world_size)
    told = planned_data(args, data, shapes, args.world_size)
    plan = plan_of(recipe, rehearsal, demand, [] if known is None else [known], assumptions, told)
    return RunPlan(plan, _planned_run(plan, demand, rehearsal, shapes, args, known, price_usd_per_hour))


def _accelerator(device: torch.device) -> Accelerator | None:
    return accelerator_of_device(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def _planned_run(
    plan: Plan,
    demand: Demand,
    rehearsal: Rehearsal,
    shapes: RunShapes,
    args: SFTConfig,
    known: Accelerator | None,
    price_usd_per_hour: float | None,
) -> PlannedRun:
    gpu, gpus = plan.gpus[0] if plan.gpus else None, args.world_size
    on_gpu = args.device.type == "cuda"
    reasons: dict[str, str] = {}
    device = torch.cuda.get_device_name(args.device) if on_gpu else cpu_model() or "CPU"
    step = _cpu_seconds(demand, device, reasons) if not on_gpu else None if gpu is None else gpu.step_seconds
    if on_gpu and step is None:
        reasons["time"] = "; ".join(gpu.notes) if gpu is not None else f"no rates of {device} are known"
    training = None if step is None else step * shapes.train.steps
    if price_usd_per_hour is None:
        reasons["cost"] = "no price is known: set efficiency.price_usd_per_hour"
    watts = None if known is None else known.tdp_watts
    if watts is None:
        reasons["energy"] = f"the power of {device} is not known"
    return PlannedRun(
        device=device,
        steps=shapes.train.steps,
        positions=rehearsal.rows * rehearsal.length,
        step_tokens=shapes.train.step_tokens,
        categories=held_by_category(rehearsal),
        peak_allocated_bytes=plan.memory.peak_allocated_bytes if on_gpu else None,
        peak_reserved_bytes=None if gpu is None else gpu.reserved_bytes,
        fits=None if gpu is None else gpu.fits,
        step_seconds=step,
        tokens_per_second=None if step is None else shapes.train.step_tokens / step,
        training_seconds=training,
        training_cost_usd=None if training is None else cost_usd(training, price_usd_per_hour),
        training_energy_joules=None
        if training is None or watts is None
        else energy_from_tdp(watts, training, devices=gpus),
        reasons=reasons,
    )


def _cpu_seconds(demand: Demand, device: str, reasons: dict[str, str]) -> float | None:
    calibration = load_calibration(device)
    if calibration is None:
        reasons["time"] = "this CPU was not calibrated: `hf-efficient env --calibrate` does it once"
        return None
    time = step_time(demand.operators, cpu_roofs(calibration).roofs)
    if time.unknown:
        reasons["time"] = f"the calibration of this CPU lacks {', '.join(time.unknown)}"
        return None
    # Processes of one machine share its cores: a launcher gives each of them fewer threads.
    fewer = max(1.0, (calibration.threads or 1) / torch.get_num_threads())
    return time.seconds * demand.step_share * fewer
