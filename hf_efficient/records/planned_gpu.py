"""What a plan tells of one accelerator."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_efficient.records.planned_spot import PlannedSpot

__all__ = ["PlannedGpu"]


@dataclass(frozen=True)
class PlannedGpu:
    """The run on one accelerator. All its times are estimates.

    Attributes:
        name: of the accelerator.
        memory_bytes: that its vendor states.
        usable_memory_bytes: of it, what torch reports as its total: the limit that ``fits`` is judged by.
        needed_bytes: reserved by torch's allocator, the CUDA context, and NCCL's buffers where there are several
            ranks; where it does not fit, what it asked for.
        reserved_bytes: of it, reserved by the allocator at most; None where it does not fit.
        allocated_bytes: of these in use at most, as ``torch.cuda.max_memory_allocated`` counts: cuBLAS's workspaces
            included, and every tensor rounded up to 512 bytes; None where it does not fit.
        fits: whether the training runs: it is not out of memory, and not in a format that the device does not have,
            which a note then tells.
        allocation_retries: how often the allocator has to give memory back to make room.
        step_seconds: an optimizer step; None where a rate of the device is not known.
        tokens_per_second: without padding where the data were read; else of the rows, all of one length.
        bound_shares: shares of the step by what bounds it: math, bandwidth, launch; communication as well, where
            there are several ranks.
        notes: what is missing, and why.
        market: that the figures below are of: ``on_demand``, or ``spot``, which are those of ``spot``.
        price_usd_per_hour: of all GPUs together; None where no price is known.
        price_source: whose list price that is, and of which day.
        usd_per_million_tokens: None without a price or a time.
        run_seconds, run_usd, run_kwh, run_co2e_grams: of all steps, and of evaluations and saves where they are known;
            None where the number of steps is not known.
        run_evaluation_seconds: of it, evaluations, nothing lost; None where they are not known, and in no figure.
        run_saving_seconds: of it, saves of checkpoints; None where they are not known, and in no figure, or where the
            market is spot, whose saves are part of ``spot.overhead_share``.
        communication_seconds: of an optimizer step, in which the links to other GPUs and to the host are busy.
        exposed_communication_seconds: of them, in which nothing is computed. Both None where no time is known.
        kwh_per_million_tokens, co2e_grams_per_million_tokens: of the board at its thermal design power.
        spot: on machines that may be taken away; None where no such price is known, unless ``market`` is spot.
        on_frontier: whether no other accelerator that fits is at least as fast and as cheap, and better in one.
    """

    name: str
    memory_bytes: int
    usable_memory_bytes: int
    needed_bytes: int
    reserved_bytes: int | None
    fits: bool
    allocation_retries: int
    step_seconds: float | None
    tokens_per_second: float | None
    bound_shares: dict[str, float]
    notes: list[str] = field(default_factory=list)
    market: str = "on_demand"
    price_usd_per_hour: float | None = None
    price_source: str | None = None
    usd_per_million_tokens: float | None = None
    run_seconds: float | None = None
    run_usd: float | None = None
    run_kwh: float | None = None
    run_co2e_grams: float | None = None
    kwh_per_million_tokens: float | None = None
    co2e_grams_per_million_tokens: float | None = None
    spot: PlannedSpot | None = None
    on_frontier: bool = False
    run_evaluation_seconds: float | None = None
    allocated_bytes: int | None = None
    communication_seconds: float | None = 0.0
    exposed_communication_seconds: float | None = 0.0
    run_saving_seconds: float | None = None
