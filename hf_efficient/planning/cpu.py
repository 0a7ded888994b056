"""A simulated training on this machine's CPU: does it fit the memory, how long does it take?"""

from collections.abc import Sequence
from dataclasses import replace

import psutil
import torch

from hf_efficient.errors import SetupError
from hf_efficient.estimate.roofline import StepTime, cpu_roofs, step_time
from hf_efficient.facts.accelerators import CPU, Accelerator
from hf_efficient.facts.environment import cpu_emulates_bf16, cpu_model
from hf_efficient.model.fast_step import settle_fast_step
from hf_efficient.planning.gpu import Demand, run_seconds
from hf_efficient.profilers.calibration import load_calibration
from hf_efficient.recipe.rules.distributed import planned_processes
from hf_efficient.recipe.schema import QuantizationSection, Recipe
from hf_efficient.records.device import OperatorWork
from hf_efficient.records.plan import PlannedGpu

_MEMORY = "memory is that of tensors alone: Python and its libraries take more"


def on_cpu(recipe: Recipe) -> Recipe:
    """With what each ``auto``, and silence on bfloat16, mean here. ``SetupError``: it asks for several processes, which
    share cores and memory."""
    processes = planned_processes(recipe)
    if processes > 1:
        raise SetupError(f"cpu: is planned for one process, not for {processes}. Write distributed.processes=1.")
    recipe = settle_fast_step(recipe, CPU)
    if not cpu_emulates_bf16():
        return recipe
    adapter, section = recipe.adapter, recipe.adapter.quantization or QuantizationSection()
    if adapter.method == "qlora" and section.compute_dtype == "auto":
        in_float32 = section.model_copy(update={"compute_dtype": "float32"})
        adapter = adapter.model_copy(update={"quantization": in_float32})
    return recipe.model_copy(update={"train": {"bf16": False, **recipe.train}, "adapter": adapter})


def this_cpu() -> Accelerator:
    """Its rates are not stated by anybody: a calibration measures them."""
    name, memory = cpu_name(), psutil.virtual_memory().total
    return Accelerator(
        name=name,
        vendor=CPU,
        device_names=(name,),
        compute_capability=None,
        memory_bytes=memory,
        usable_memory_bytes=memory,
        bandwidth_bytes_per_second=None,
        tdp_watts=None,
        peak_flops_per_second={},
        source="this machine",
        date="",
    )


def cpu_name() -> str:
    return cpu_model() or "CPU"


def planned_cpu(demand: Demand, device: Accelerator, peak_bytes: int) -> PlannedGpu:
    step, why = cpu_time(demand.operators, demand.no_time)
    seconds = None if step is None else step.seconds * demand.step_share
    evaluation, _ = cpu_time(demand.evaluation)
    run, evaluating = run_seconds(demand, seconds, None if evaluation is None else evaluation.seconds)
    return PlannedGpu(
        name=device.name,
        memory_bytes=device.memory_bytes,
        usable_memory_bytes=device.usable_memory_bytes,
        needed_bytes=peak_bytes,
        reserved_bytes=None,
        fits=peak_bytes <= device.usable_memory_bytes,
        allocation_retries=0,
        step_seconds=seconds,
        tokens_per_second=None if seconds is None else demand.tokens / seconds,
        bound_shares={}
        if step is None
        else {name: held / step.seconds for name, held in step.seconds_by_bound.items()},
        notes=[_MEMORY, *([f"no time: {why}"] if why else [])],
        run_seconds=run,
        run_evaluation_seconds=evaluating,
        on_cpu=True,
    )


def cpu_time(operators: Sequence[OperatorWork], no_time: str = "") -> tuple[StepTime | None, str]:
    """With as many threads as this process has; without a time, why. ``no_time``: why there is none on any device."""
    if no_time:
        return None, no_time
    calibration = load_calibration(cpu_name())
    if calibration is None:
        return None, "this CPU was not calibrated: `hf-efficient env --calibrate` does it once"
    time = step_time(operators, cpu_roofs(calibration))
    if time.unknown:
        return None, f"the calibration of this CPU lacks {', '.join(time.unknown)}"
    # Processes of one machine share its cores: a launcher gives each of them fewer threads.
    fewer = max(1.0, (calibration.threads or 1) / torch.get_num_threads())
    by_bound = {name: held * fewer for name, held in time.seconds_by_bound.items()}
    return replace(time, seconds=time.seconds * fewer, seconds_by_bound=by_bound), ""
