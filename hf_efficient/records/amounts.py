"""Amounts in the account of a run: tokens, sequences, FLOPs, the data loader's work, memory, energy, money."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TokenAccount:
    """Tokens of all ranks; a count is None where a step of any rank does not know it. ``padding_share`` is 1 -
    non_padding / processed. Rates are over the largest ``training_seconds`` of any rank: data wait and logging
    included, evaluations and saves not."""

    processed: int | None
    non_padding: int | None
    target: int | None
    padding_share: float | None
    non_padding_tokens_per_second: float | None
    processed_tokens_per_second: float | None


@dataclass(frozen=True)
class SequenceAccount:
    """The sequences of all ranks; None where a step of any rank does not know them. ``samples``, ``length_buckets``:
    documents: examples, or their pieces after packing; by upper bound of a bucket in tokens. ``samples_per_second``:
    ``samples`` / the largest ``training_seconds`` of any rank. ``fill_rate``: share of the packs' positions that hold
    tokens; None without packing."""

    rows: int | None = None
    samples: int | None = None
    mean_tokens: float | None = None
    shortest_tokens: int | None = None
    longest_tokens: int | None = None
    length_buckets: dict[str, int] = field(default_factory=dict)
    samples_per_second: float | None = None
    fill_rate: float | None = None


@dataclass(frozen=True)
class WorkAccount:
    """FLOPs of the training steps of all ranks (evaluations apart), against what the devices could have done.

    ``model_flops``: what the mathematics needs; None where it cannot be counted. ``hardware_flops``: what was computed:
    padding, masked pairs and recompute included. ``mfu``, ``hfu``: of each, over (the largest ``training_seconds`` of
    any rank * accelerators * peak). ``peak_flops_per_second``: of one accelerator, dense, in the dtype of the matrix
    products; ``peak_estimated``: measured. ``accelerators``: one for each rank, unless a rank's model is spread over
    several."""

    model_flops: int | None = None
    hardware_flops: int | None = None
    mfu: float | None = None
    hfu: float | None = None
    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_estimated: bool = False
    accelerators: int = 1
    dtype: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """One evaluation. ``metrics`` are without the prefix ``eval_``, None where not finite. ``rows``: that were
    evaluated."""

    step: int
    metrics: dict[str, float | None]
    seconds: float | None = None
    rows: int | None = None


@dataclass(frozen=True)
class AnswerLengths:
    """Mean tokens of a better (or good) and of a worse (or bad) answer of the training data, as they are cut. With
    their prompts for a reward model. ``longer_chosen_share``: of pairs, those whose better answer is the longer one;
    None of labelled answers."""

    chosen_tokens: float
    rejected_tokens: float
    longer_chosen_share: float | None = None


@dataclass(frozen=True)
class PreferenceAccount:
    """What TRL's trainer logged of the answers that it compares, by the names of ``records.steps.PREFERENCES``."""

    first: dict[str, float]
    last: dict[str, float]
    lengths: AnswerLengths | None = None


@dataclass(frozen=True)
class LoaderAccount:
    """What the data loader of rank 0 did in the training (see ``StepLoader``, whose sums these are). The last batches
    may never have been trained on. ``mean_ready`` is None without workers."""

    steps: int
    epochs: int
    batches: int
    rows: int | None
    bytes: int
    wait_seconds: float
    first_wait_seconds: float
    start_seconds: float
    end_seconds: float
    fetched: int
    fetch_seconds: float
    fetch_cpu_seconds: float
    fetch_process_cpu_seconds: float
    collate_seconds: float
    collate_cpu_seconds: float
    collate_process_cpu_seconds: float
    core_wait_seconds: float
    read_bytes: int
    mean_ready: float | None
    workers: int | None
    prefetch_factor: int | None
    persistent_workers: bool | None
    pin_memory: bool | None


@dataclass(frozen=True)
class MemoryCategory:
    """Bytes of one kind of tensor on the device that trains (the host's memory on a CPU), on rank 0. ``how``:
    ``exact``: counted; ``measured``: counted in one forward, see ``note``; ``derived``: what is left of a peak."""

    name: str
    bytes: int
    how: Literal["exact", "measured", "derived"]
    note: str = ""


@dataclass(frozen=True)
class MemoryAccount:
    """Peaks of rank 0 over all processes of the run. ``peak_rss_bytes`` counts from the start of the process; device
    peaks are those of torch's allocator."""

    peak_rss_bytes: int | None
    device_peak_allocated_bytes: int | None
    device_peak_reserved_bytes: int | None
    device_allocation_retries: int | None
    phase_peak_allocated_bytes: dict[str, int] | None = None
    categories: list[MemoryCategory] = field(default_factory=list)


@dataclass(frozen=True)
class EnergyPart:
    """What one meter read. ``missing_seconds`` is wall time without a reading, among it all before the run knew its
    output directory. ``note`` says what is metered, or how it was estimated."""

    name: str
    joules: float
    source: Literal["nvml", "rapl", "estimate"]
    estimated: bool
    covered_seconds: float
    missing_seconds: float
    note: str = ""


@dataclass(frozen=True)
class EnergyAccount:
    """Energy of the run's machines, all of its processes and ranks: what the meters read, without cooling.
    ``phase_joules``: the energy by phase of rank 0, ``unattributed`` included, shared out by the readings' times (see
    ``accounting/money.py``); None where there is no part. ``co2e_grams``: ``joules`` times the grid's intensity; None
    where there is no part."""

    joules: float | None = None
    estimated: bool = False
    parts: list[EnergyPart] = field(default_factory=list)
    phase_joules: dict[str, float] | None = None
    co2e_grams: float | None = None
    grid_grams_per_kwh: float | None = None
    grid_source: str | None = None


@dataclass(frozen=True)
class BudgetAccount:
    """The limits of a run. ``reached`` says in words which one ended it."""

    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None
    reached: str | None = None
    reached_at_step: int | None = None


@dataclass(frozen=True)
class MoneyAccount:
    """What the wall time of the run cost.

    ``cost_usd``, ``phase_usd``: ``wall_seconds`` of each process at its own price; the phases include ``unattributed``.
    ``price_usd_per_hour``: of everything that the run occupies, in its last process. The lowest and the highest price
    are None unless processes differ. ``estimated``: the price is the median of list prices."""

    cost_usd: float | None = None
    usd_per_million_non_padding_tokens: float | None = None
    phase_usd: dict[str, float] | None = None
    price_usd_per_hour: float | None = None
    price_source: str | None = None
    estimated: bool = False
    budget: BudgetAccount | None = None
    lowest_price_usd_per_hour: float | None = None
    highest_price_usd_per_hour: float | None = None
