"""A rehearsed training on one accelerator: does it fit, how long does it take?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hf_efficient.estimate.caching_allocator import AllocatorPeaks, OutOfMemory, replay
from hf_efficient.estimate.cuda_process import CONTEXT, cublas_workspace_bytes, nccl_bytes
from hf_efficient.estimate.roofline import Roofs, step_time
from hf_efficient.estimate.roofs import accelerator_roofs
from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.planning.ranks.exchange import Exchange, exchange_of
from hf_efficient.planning.rehearsed import Rank
from hf_efficient.profilers.calibration_files import load_calibration
from hf_efficient.records.device import OperatorWork
from hf_efficient.records.plan import PlannedGpu

_WORKSPACES = (-1, -2)
"""Keys of the workspaces of cuBLAS, of the thread that runs the forward and of that which runs the backward."""
_NO_BF16 = (
    "does not fit as planned, in bfloat16, which it has not: the run refuses train.bf16 there, and where that is not "
    "written trains in float32, which takes more memory; train.fp16=true train.bf16=false can be planned"
)


@dataclass(frozen=True)
class Demand:
    """What a training asks of a device.

    Attributes:
        events: allocations and frees, as (key, bytes), negative where freed.
        first_step: events before the first optimizer step.
        operators: of the step that was rehearsed.
        tokens: of the mean step of all ranks, without padding where the data are known.
        steps: of the run; None where not known.
        step_share: of the rehearsed step's time that the mean one takes.
        evaluation: operators of an evaluation's batch.
        evaluation_batches: of that size, in all evaluations of the run; None where not known.
        without_limit: of the allocator on a device with any amount of memory, by the bytes of a cuBLAS workspace there;
            found once, when it is first asked for.
        rank: that this is the demand of; None of a process that trains alone.
        bf16: whether it is mixed precision in bfloat16, as train.bf16 has it and as it is by default.
        saves: checkpoints that the run writes; None where not known.
    """

    events: Sequence[tuple[int, int]]
    first_step: int
    operators: Sequence[OperatorWork]
    tokens: int
    steps: int | None
    step_share: float = 1.0
    evaluation: Sequence[OperatorWork] = ()
    evaluation_batches: float | None = 0.0
    without_limit: dict[int, AllocatorPeaks] = field(default_factory=dict, init=False, repr=False, compare=False)
    rank: Rank | None = None
    bf16: bool = False
    saves: int | None = 0

    @property
    def ranks(self) -> int:
        """How many devices train."""
        return 1 if self.rank is None else self.rank.sharding.ranks


def planned_gpu(demand: Demand, device: Accelerator) -> PlannedGpu:
    """The training on as many such devices as there are ranks, memory and time; its money is of ``money.with_costs``.

    Args:
        demand: of the training.
        device: the accelerator.
    """
    notes: list[str] = []
    peaks, needed = _memory(demand, device)
    if demand.bf16 and device.lacks_bfloat16:
        peaks = None
        notes.append(_NO_BF16)
    roofs = _roofs(device)
    seconds, bounds, exchange = _step_seconds(demand, device, roofs, notes)
    run = evaluating = None
    if seconds is not None and demand.steps is not None:
        if demand.evaluation_batches is not None:
            evaluating = demand.evaluation_batches * step_time(demand.evaluation, roofs).seconds
        run = seconds * demand.steps + (evaluating or 0.0)
    return PlannedGpu(
        name=device.name,
        memory_bytes=device.memory_bytes,
        usable_memory_bytes=device.usable_memory_bytes,
        needed_bytes=needed,
        reserved_bytes=None if peaks is None else peaks.peak_reserved_bytes,
        allocated_bytes=None if peaks is None else peaks.peak_allocated_bytes,
        fits=peaks is not None,
        allocation_retries=0 if peaks is None else peaks.retries,
        step_seconds=seconds,
        tokens_per_second=None if seconds is None else demand.tokens / seconds,
        bound_shares=bounds,
        communication_seconds=exchange.seconds,
        exposed_communication_seconds=exchange.exposed_seconds,
        run_seconds=run,
        run_evaluation_seconds=evaluating,
        notes=notes,
    )


def _memory(demand: Demand, device: Accelerator) -> tuple[AllocatorPeaks | None, int]:
    """Of the allocator (None where it does not fit), and what is needed in all."""
    outside = CONTEXT.bytes + nccl_bytes(demand.ranks)
    limit = device.usable_memory_bytes - outside
    workspace = 0 if device.compute_capability is None else cublas_workspace_bytes(device.compute_capability)
    anywhere = _without_limit(demand, workspace)
    if anywhere.peak_reserved_bytes <= limit:
        return anywhere, anywhere.peak_reserved_bytes + outside
    try:
        peaks = replay(_with_workspaces(demand, workspace), limit_bytes=limit)
    except OutOfMemory:
        return None, anywhere.peak_reserved_bytes + outside
    return peaks, peaks.peak_reserved_bytes + outside


def _without_limit(demand: Demand, workspace: int) -> AllocatorPeaks:
    """Of a device with any amount of memory; one that never meets its limit does the same."""
    if workspace not in demand.without_limit:
        demand.without_limit[workspace] = replay(_with_workspaces(demand, workspace))
    return demand.without_limit[workspace]


def _with_workspaces(demand: Demand, workspace: int) -> Iterator[tuple[int, int]]:
    """cuBLAS takes its workspaces with the first products, for good."""
    yield from demand.events[: demand.first_step]
    for key in _WORKSPACES:
        yield key, workspace
    yield from demand.events[demand.first_step :]


def _roofs(device: Accelerator) -> Roofs:
    calibration = next(filter(None, map(load_calibration, device.device_names)), None)
    return accelerator_roofs(device, calibration).roofs


def _step_seconds(
    demand: Demand, device: Accelerator, roofs: Roofs, notes: list[str]
) -> tuple[float | None, dict[str, float], Exchange]:
    """Of the mean step, what bounds it, and what of it is exchanged with others."""
    time = step_time(demand.operators, roofs)
    if time.unknown:
        if _NO_BF16 not in notes:
            notes.append(_no_time(device, time.unknown))
        return None, {}, Exchange(None, None)
    computing = time.seconds * demand.step_share
    bounds: dict[str, float] = {name: value / time.seconds for name, value in time.seconds_by_bound.items()}
    if demand.rank is None:
        return computing, bounds, Exchange(0.0, 0.0)
    exchange = exchange_of(demand.rank, device.name, computing)
    notes.extend(exchange.notes)
    if exchange.exposed_seconds is None:
        return None, {}, exchange
    seconds = computing + exchange.exposed_seconds
    bounds = {name: value * computing / seconds for name, value in bounds.items()}
    return seconds, {**bounds, "communication": exchange.exposed_seconds / seconds}, exchange


def _no_time(device: Accelerator, unknown: Sequence[str]) -> str:
    if device.lacks_bfloat16 and "bf16" in " ".join(unknown):
        return "no time: it has no bfloat16, which is emulated at a rate that is not known"
    return f"no time: not known of this device: {', '.join(unknown)}"
