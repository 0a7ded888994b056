"""A simulated training on one accelerator, or on this machine's CPU: does it fit, how long does it take?"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Literal

import psutil
import torch

from hf_efficient.errors import SetupError
from hf_efficient.estimate import allocator
from hf_efficient.estimate.allocator import CachingAllocator
from hf_efficient.estimate.roofline import Roofs, StepTime, accelerator_roofs, cpu_roofs, step_time
from hf_efficient.facts.environment import cpu_model
from hf_efficient.facts.tables import CPU, Accelerator, rows
from hf_efficient.model.fast_step import settle_fast_step
from hf_efficient.planning.batches import RunShapes, unread_pauses
from hf_efficient.planning.ranks.rank import Exchange, exchange_of, rank_operators
from hf_efficient.planning.simulation import Rank, Simulation
from hf_efficient.planning.target import unsuited
from hf_efficient.profilers.calibration import cpu_is_faster_in_float32, load_calibration
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules.distributed import planned_processes
from hf_efficient.recipe.schema import QuantizationSection, Recipe, mixed_precision
from hf_efficient.records.device import OperatorWork
from hf_efficient.records.plan import PlannedGpu

_WORKSPACES = (-1, -2)
"""Keys of the workspaces of cuBLAS, of the thread that runs the forward and of that which runs the backward."""
_NO_BF16 = (
    "no bfloat16: plan it with train.fp16=true train.bf16=false. With train.bf16 the run is refused there; without "
    "either key it trains in float32, which takes more memory"
)

_GENERATES = "how long completions are, and take to generate, is not known before a run"


@dataclass(frozen=True)
class PlanError:
    """Of ``trainings`` of a kind: measured over planned, less 1, of the one in twenty that is lowest and highest. Fewer
    than twenty have an interval that also holds that of all kinds."""

    low: float
    high: float
    trainings: int

    def around(self, planned: float) -> tuple[float, float]:
        return planned * (1 + self.low), planned * (1 + self.high)


def plan_error(figure: Literal["memory", "speed"], *, adapted: bool, several: bool) -> PlanError:
    """How far published trainings were from their plans in ``memory`` needed on a GPU, or ``speed`` in tokens per
    second: full or ``adapted`` ones, on one GPU or ``several``."""
    kind = (figure, "adapter" if adapted else "full", "several" if several else "one")
    row = next(row for row in rows("plan_errors") if (row["figure"], row["method"], row["gpus"]) == kind)
    return PlanError(row["low"], row["high"], row["trainings"])


@dataclass(frozen=True)
class Demand:
    """What a training asks of a device. ``events``: allocations and frees, as (key, bytes), negative where freed;
    ``first_step``: those before the first optimizer step. ``operators``: of the simulated step. ``tokens``: of the mean
    step of all ranks, without padding where the data are known; it takes ``step_share`` of the simulated one's time.
    ``evaluation``: operators of an evaluation's batch, ``evaluation_batches`` times in the run. ``without_limit``: the
    allocator on a device of any size, by the bytes of a cuBLAS workspace; a cache. ``rank``: None of a process that
    trains alone. ``no_time``: why its time is not known on any device. ``adapted``: an adapter alone is trained."""

    events: Sequence[tuple[int, int]]
    first_step: int
    operators: Sequence[OperatorWork]
    tokens: int
    steps: int | None
    step_share: float = 1.0
    evaluation: Sequence[OperatorWork] = ()
    evaluation_batches: float | None = 0.0
    without_limit: dict[int, CachingAllocator] = field(default_factory=dict, init=False, repr=False, compare=False)
    rank: Rank | None = None
    bf16: bool = False
    saves: int | None = 0
    attention: str | None = None
    no_time: str = ""
    adapted: bool = False

    @property
    def ranks(self) -> int:
        return 1 if self.rank is None else self.rank.sharding.ranks

    @property
    def errors(self) -> tuple[PlanError, PlanError]:
        kind = {"adapted": self.adapted, "several": self.ranks > 1}
        return plan_error("memory", **kind), plan_error("speed", **kind)


def planned_gpu(demand: Demand, device: Accelerator) -> PlannedGpu:
    if device.vendor == CPU:
        return _planned_cpu(demand, device)
    misfit = unsuited(demand.attention, device)
    notes = [*([_NO_BF16] if demand.bf16 and device.lacks_bfloat16 else []), *([misfit] if misfit else [])]
    fitting, needed = _memory(demand, device)
    peaks = None if notes else fitting
    memory_error, speed_error = demand.errors
    least, most = map(round, memory_error.around(needed))
    tight = not notes and least <= device.usable_memory_bytes < most
    calibration = next(filter(None, map(load_calibration, device.device_names)), None)
    roofs = accelerator_roofs(device, calibration)
    seconds, bounds, exchange = _step_seconds(demand, device, roofs, notes)
    if misfit is not None:
        seconds, bounds = None, {}
    run, evaluating = run_seconds(demand, seconds, step_time(demand.evaluation, roofs).seconds)
    return PlannedGpu(
        name=device.name,
        memory_bytes=device.memory_bytes,
        usable_memory_bytes=device.usable_memory_bytes,
        needed_bytes=needed,
        reserved_bytes=None if peaks is None else peaks.peak_reserved_bytes,
        allocated_bytes=None if peaks is None else peaks.peak_allocated_bytes,
        fits=peaks is not None,
        tight=tight,
        needed_range_bytes=(least, most),
        allocation_retries=0 if peaks is None else peaks.retries,
        step_seconds=seconds,
        tokens_per_second=None if seconds is None else demand.tokens / seconds,
        tokens_per_second_range=None if seconds is None else speed_error.around(demand.tokens / seconds),
        bound_shares=bounds,
        communication_seconds=exchange.seconds,
        exposed_communication_seconds=exchange.exposed_seconds,
        run_seconds=run,
        run_evaluation_seconds=evaluating,
        notes=notes,
    )


def run_seconds(
    demand: Demand, step_seconds: float | None, evaluation_seconds: float | None
) -> tuple[float | None, float | None]:
    """Of all steps with the evaluations between them, and of the evaluations, by one step and one batch of them."""
    if step_seconds is None or demand.steps is None:
        return None, None
    known = demand.evaluation_batches is not None and evaluation_seconds is not None
    evaluating = demand.evaluation_batches * evaluation_seconds if known else None  # type: ignore[operator]
    return step_seconds * demand.steps + (evaluating or 0.0), evaluating


def _memory(demand: Demand, device: Accelerator) -> tuple[CachingAllocator | None, int]:
    """Of the allocator (None where it does not fit), and what is needed in all."""
    outside = allocator.CONTEXT_BYTES + allocator.nccl_bytes(demand.ranks)
    limit = device.usable_memory_bytes - outside
    workspace = 0 if device.compute_capability is None else allocator.cublas_workspace_bytes(device.compute_capability)
    # cuBLAS takes its workspaces with the first products, for good.
    taken = [(key, workspace) for key in _WORKSPACES]
    parts = demand.events[: demand.first_step], taken, demand.events[demand.first_step :]
    if workspace not in demand.without_limit:
        demand.without_limit[workspace] = allocator.replay(chain(*parts))
    anywhere = demand.without_limit[workspace]
    if anywhere.peak_reserved_bytes <= limit:
        return anywhere, anywhere.peak_reserved_bytes + outside
    try:
        peaks = allocator.replay(chain(*parts), limit_bytes=limit)
    except allocator.OutOfMemory:
        return None, anywhere.peak_reserved_bytes + outside
    return peaks, peaks.peak_reserved_bytes + outside


def _step_seconds(
    demand: Demand, device: Accelerator, roofs: Roofs, notes: list[str]
) -> tuple[float | None, dict[str, float], Exchange]:
    time = step_time(demand.operators, roofs)
    if demand.no_time:
        notes.append(f"no time: {demand.no_time}")
        return None, {}, Exchange(None, None)
    if time.unknown:
        if device.lacks_bfloat16 and "bf16" in " ".join(time.unknown):
            why = "it has no bfloat16, which is emulated at a rate that is not known"
        else:
            other = (
                ". Try bf16=True" if all("fp32" in one for one in time.unknown) and not device.lacks_bfloat16 else ""
            )
            why = f"not known of this device: {', '.join(time.unknown)}{other}"
        if _NO_BF16 not in notes:
            notes.append(f"no time: {why}")
        return None, {}, Exchange(None, None)
    computing = time.seconds * demand.step_share
    if demand.rank is None:
        return computing, time.bound_shares, Exchange(0.0, 0.0)
    exchange = exchange_of(demand.rank, device.name, computing)
    notes.extend(exchange.notes)
    if exchange.exposed_seconds is None:
        return None, {}, exchange
    seconds = computing + exchange.exposed_seconds
    bounds = {name: value * computing / seconds for name, value in time.bound_shares.items()}
    return seconds, {**bounds, "communication": exchange.exposed_seconds / seconds}, exchange


def demand_of(recipe: Recipe, simulation: Simulation, shapes: RunShapes | None = None, processes: int = 1) -> Demand:
    """On one rank; a mean step and an evaluation take time in proportion to their positions. ``shapes``: None where the
    data are not known: every row is as the simulated ones; evaluations have ``data.max_eval_examples`` of them."""
    positions = simulation.rows * simulation.length * simulation.micro_batches
    rank, evaluation = simulation.rank, simulation.evaluation
    written = int(recipe.train.get("max_steps") or -1)
    steps = written if written > 0 else None  # else they depend on the data
    ranks = 1 if rank is None else rank.sharding.ranks
    found = Demand(
        events=simulation.log.events,
        first_step=simulation.first_step,
        operators=rank_operators(_as_run(recipe, simulation.operators), rank),
        tokens=positions * ranks,
        steps=steps,
        evaluation=() if evaluation is None else _as_run(recipe, evaluation.operators),
        rank=rank,
        bf16=mixed_precision(recipe) == "bf16",
        attention=recipe.model.attn_implementation,
        no_time=_GENERATES if OBJECTIVES[recipe.objective].generates else "",
        adapted=recipe.adapter.method != "full",
    )
    if shapes is None:
        batches, saves = unread_pauses(recipe, steps, evaluation, ranks)
        return replace(found, evaluation_batches=batches, saves=saves)
    evaluated = 0 if evaluation is None else evaluation.rows * evaluation.length * OBJECTIVES[recipe.objective].rows
    return replace(
        found,
        tokens=round(shapes.train.step_content * ranks / processes),
        steps=shapes.train.steps,
        step_share=shapes.train.step_tokens / processes / positions,
        evaluation_batches=0.0 if evaluation is None else shapes.evaluated_positions / processes / evaluated,
        saves=shapes.saves,
    )


def _as_run(recipe: Recipe, operators: Sequence[OperatorWork]) -> Sequence[OperatorWork]:
    """What was simulated with bfloat16 in place of float16, in the run's own dtype."""
    if not recipe.train.get("fp16"):
        return operators
    return [replace(one, dtype="fp16") if one.dtype == "bf16" else one for one in operators]


def with_frontier(gpus: Sequence[PlannedGpu]) -> list[PlannedGpu]:
    """The same, marked where none that fits is at least as fast and as cheap, and better in one of the two.
    Hand-worked: (2 s, $1), (1 s, $3), (2 s, $3): the first two; the third is as slow as the first, and dearer. Those
    that do not fit, or have no known time or cost, are never marked."""
    points = [_point(gpu) for gpu in gpus]
    known = [point for point in points if point is not None]
    found = []
    for gpu, point in zip(gpus, points, strict=True):
        beaten = point is None or any(one != point and one[0] <= point[0] and one[1] <= point[1] for one in known)
        found.append(replace(gpu, on_frontier=not beaten))
    return found


def _point(gpu: PlannedGpu) -> tuple[float, float] | None:
    """Time of a step and cost of its tokens, what spot machines lose included."""
    if not gpu.fits or gpu.step_seconds is None or gpu.usd_per_million_tokens is None:
        return None
    lost = gpu.spot.overhead_share if gpu.market == "spot" and gpu.spot is not None else None
    return gpu.step_seconds * (1 + (lost or 0.0)), gpu.usd_per_million_tokens


_MEMORY = "memory is that of tensors alone: Python and its libraries take more"


def on_cpu(recipe: Recipe) -> Recipe:
    """With what each ``auto``, and silence on bfloat16, mean here. ``SetupError``: several processes, sharing it."""
    processes = planned_processes(recipe)
    if processes > 1:
        raise SetupError(f"cpu: is planned for one process, not for {processes}. Write distributed.processes=1.")
    recipe = settle_fast_step(recipe, CPU)
    if not cpu_is_faster_in_float32():
        return recipe
    adapter, section = recipe.adapter, recipe.adapter.quantization or QuantizationSection()
    if adapter.method == "qlora" and section.compute_dtype == "auto":
        in_float32 = section.model_copy(update={"compute_dtype": "float32"})
        adapter = adapter.model_copy(update={"quantization": in_float32})
    train = recipe.train if recipe.train.get("bf16") is not None else {**recipe.train, "bf16": False}
    return recipe.model_copy(update={"train": train, "adapter": adapter})


def this_cpu() -> Accelerator:
    """Its rates are not stated by anybody: a calibration measures them."""
    name, memory = cpu_model() or "CPU", psutil.virtual_memory().total
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


def _planned_cpu(demand: Demand, device: Accelerator) -> PlannedGpu:
    peak_bytes = max(accumulate(size for _, size in demand.events))
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
        bound_shares={} if step is None else step.bound_shares,
        notes=[_MEMORY, *([f"no time: {why}"] if why else [])],
        run_seconds=run,
        run_evaluation_seconds=evaluating,
        on_cpu=True,
    )


def cpu_time(operators: Sequence[OperatorWork], no_time: str = "") -> tuple[StepTime | None, str]:
    """With as many threads as this process has; without a time, why. ``no_time``: why there is none on any device."""
    if no_time:
        return None, no_time
    calibration = load_calibration(this_cpu().name)
    if calibration is None:
        return None, "this CPU was not calibrated. Run `hf-efficient env --calibrate` once"
    time = step_time(operators, cpu_roofs(calibration))
    if time.unknown:
        return None, f"the calibration of this CPU lacks {', '.join(time.unknown)}"
    # Processes of one machine share its cores: a launcher gives each of them fewer threads.
    fewer = max(1.0, (calibration.threads or 1) / torch.get_num_threads())
    by_bound = {name: held * fewer for name, held in time.seconds_by_bound.items()}
    return replace(time, seconds=time.seconds * fewer, seconds_by_bound=by_bound), ""
