"""What a plan says before a run, in the words and units of the run's account."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class PlannedTimeline:
    """What is allocated over the first two optimizer steps, in some hundred moments; columns of one length. Between two
    of them less may have been allocated, never more: each is the highest of its stretch. ``events`` counts allocations
    and frees up to each moment, from the start of the first step."""

    events: list[int]
    phases: list[str]
    categories: dict[str, list[int]]
    second_step: int


@dataclass(frozen=True)
class PlannedTensor:
    """Equal tensors that are there at the peak, ``bytes`` each, with the operator of the first or, if there from the
    start, the parameter's name."""

    bytes: int
    category: str
    module: str
    operator: str
    shape: tuple[int, ...]
    dtype: str
    count: int = 1


@dataclass(frozen=True)
class PlannedMemory:
    """Memory of one process on its device. ``peak_allocated_bytes``: tensors, at the worst moment of a step.
    ``peak_phase``: forward, recompute (activation checkpointing), backward, optimizer, evaluation. ``peak_step``: 1:
    the first step; 2: a later one or an evaluation. ``categories``: by use, adding up to the peak. With several ranks
    also ``gathered_weights`` of others and the buffers of ``communication``. ``category_peak_bytes``: of each use at
    most, each at its own moment. ``paged_bytes``: optimizer state outside of torch's allocator that moves between
    device and host."""

    peak_allocated_bytes: int
    peak_phase: str
    peak_module: str
    peak_step: int
    categories: dict[str, int]
    category_peak_bytes: dict[str, int]
    largest: list[PlannedTensor]
    phase_peak_allocated_bytes: dict[str, int]
    model_bytes: int
    paged_bytes: int = 0
    timeline: PlannedTimeline | None = None


@dataclass(frozen=True)
class PlannedSpot:
    """A run on spot machines, in expectation. ``overhead_share``: saves, restarts and work done again, as a share of
    the work. ``preemptions``, ``run_seconds``, ``run_usd``: of all steps, while a machine runs; None where their number
    is unknown."""

    price_usd_per_hour: float | None
    price_source: str | None
    hours_between_preemptions: float
    checkpoint_bytes: int
    checkpoint_seconds: float
    save_every_steps: int | None = None
    overhead_share: float | None = None
    usd_per_million_tokens: float | None = None
    preemptions: float | None = None
    run_seconds: float | None = None
    run_usd: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class PlannedGpu:
    """The run on one accelerator. All its times are estimates.

    Attributes:
        usable_memory_bytes: what torch reports as the device's total: the limit that ``fits`` is judged by.
        needed_bytes: reserved by the allocator, CUDA context, NCCL's buffers; what it asked for where it does not fit.
        allocated_bytes: at most in use, as ``torch.cuda.max_memory_allocated`` counts: cuBLAS's workspaces included,
            each tensor rounded up to 512 bytes; None where it does not fit.
        needed_range_bytes, tokens_per_second_range: where nine of ten published trainings of this kind were, measured
            against their plans (``facts/data/plan_errors.yaml``).
        fits: it is neither out of memory nor in a format or with a kernel that the device lacks (a note then says so).
        tight: ``usable_memory_bytes`` is inside of ``needed_range_bytes``.
        tokens_per_second: without padding where the data were read; else of rows of one length.
        bound_shares: of the step by what bounds it: math, bandwidth, launch, communication.
        run_seconds, run_usd, run_kwh, run_co2e_grams: of all steps, and of evaluations and saves where they are known;
            None where the number of steps is not known.
        run_evaluation_seconds, run_saving_seconds: None where they are not known, and in no figure. Saves on spot
            machines are part of ``spot.overhead_share``.
        communication_seconds: of an optimizer step, in which the links to other GPUs and to the host are busy.
        exposed_communication_seconds: of them, in which nothing is computed.
        kwh_per_million_tokens, co2e_grams_per_million_tokens: of the board at its thermal design power.
        spot: None where no such price is known, unless ``market`` is spot.
        on_frontier: no other accelerator that fits is at least as fast and as cheap, and better in one.
        on_cpu: it is this machine's CPU, and ``needed_bytes`` are of tensors alone.
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
    on_cpu: bool = False
    tight: bool = False
    needed_range_bytes: tuple[int, int] | None = None
    tokens_per_second_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class PlannedBatching:
    """The run's examples as batches of one kind, at the recipe's micro-batch; positions include padding."""

    name: str
    overrides: dict[str, Any]
    chosen: bool
    epoch_positions: int
    padding_share: float
    epoch_steps: int


@dataclass(frozen=True)
class PlannedOutcome:
    """What a recipe comes to on one accelerator; ``needed_bytes`` includes the CUDA context."""

    needed_bytes: int
    fits: bool
    step_seconds: float | None
    tokens_per_second: float | None


@dataclass(frozen=True)
class PlannedChange:
    """A change of the recipe, or several; ``keeps_training``: but for rounding, weights learn the same."""

    overrides: dict[str, Any]
    gives: str
    costs: str
    keeps_training: bool
    before: PlannedOutcome
    after: PlannedOutcome


@dataclass(frozen=True)
class PlannedAdvice:
    """What to change in a recipe for one accelerator. Changes that fit come first, then those that keep the training,
    the fastest per token, the largest saving of memory."""

    accelerator: str
    memory_bytes: int
    usable_memory_bytes: int
    before: PlannedOutcome
    changes: list[PlannedChange]
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlannedLargest:
    """The most that fits on one accelerator. ``micro_batch_rows``: rows as long as the recipe's, pairs of ``objective:
    dpo``; 0 where not one fits. ``row_tokens``: with as many rows as the recipe's; a multiple of ``row_tokens_step``,
    or 0. ``rows_bounded``, ``tokens_bounded``: the search ended at its own limit, or at the positions that the model
    was made for."""

    accelerator: str
    micro_batch_rows: int
    row_tokens: int
    row_tokens_step: int
    rows_bounded: bool = False
    tokens_bounded: bool = False


@dataclass(frozen=True)
class PlannedRanks:
    """Several processes, one GPU each; ``host_bytes`` is what is offloaded to the machine's memory, over all ranks."""

    count: int
    strategy: str
    offloaded: list[str]
    host_bytes: int
    disk_bytes: int = 0


@dataclass(frozen=True)
class PlannedData:
    """The data of the run, where they were read; ``batchings`` is empty where packs have cut the examples.
    ``evaluation_examples``: that are packed into ``evaluation_rows``; None where each is a row."""

    examples: int
    tokens: int
    longest_tokens: int
    padding_share: float
    evaluation_rows: int
    evaluations: int
    batchings: list[PlannedBatching] = field(default_factory=list)
    evaluation_examples: int | None = None


@dataclass(frozen=True)
class Plan:
    """A recipe before it runs. ``flops_per_step``: of the operators of a step; of the largest one, where the data were
    read. ``gpus``: those that fit first, the cheapest per token first. ``ranks``: None where one process trains alone.
    Memory and the shape of a step are of one rank; FLOPs, tokens, money and energy of all."""

    recipe: str
    model: str
    adapter: str
    parameters: int
    trained_parameters: int
    micro_batch_rows: int
    row_tokens: int
    micro_batches: int
    steps: int | None
    flops_per_step: int
    memory: PlannedMemory
    gpus: list[PlannedGpu]
    assumptions: list[str] = field(default_factory=list)
    advice: PlannedAdvice | None = None
    largest: PlannedLargest | None = None
    data: PlannedData | None = None
    ranks: PlannedRanks | None = None
    schema_version: int = 1

    @property
    def step_rows(self) -> tuple[int, ...]:
        """What a step's tokens are the product of: ranks, where there are several, micro-batches, rows, tokens."""
        of_one = (self.micro_batches, self.micro_batch_rows, self.row_tokens)
        return of_one if self.ranks is None or self.ranks.count == 1 else (self.ranks.count, *of_one)


@dataclass(frozen=True)
class PlannedRun:
    """The run on the device that is here, on rank 0. All its times are estimates. ``positions``: of the largest
    micro-batch, padding included: it decides the memory. ``step_tokens``: positions of an optimizer step of all ranks,
    the mean over the data. ``categories``: most bytes of each kind of tensor, in the words of ``MemoryCategory``;
    activations and logits where a backward begins. Peaks are those of the CUDA device; None on a CPU.
    ``training_seconds``, ``training_energy_joules``: without evaluations and saves; at the GPUs' design power.
    ``reasons``: by the name of a figure that is None, why."""

    device: str
    steps: int
    positions: int
    step_tokens: float
    categories: dict[str, int]
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    fits: bool | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    training_seconds: float | None = None
    training_cost_usd: float | None = None
    training_energy_joules: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunPlan:
    """``plan.json`` of a run: ``plan`` is of its longest rows on the accelerator that is here, if known."""

    plan: Plan
    run: PlannedRun
    schema_version: int = 1
