"""Amounts in the account of a run: tokens, sequences, FLOPs, the data loader's work, memory, energy, money."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TokenAccount:
    """Tokens of all ranks; a count is None where a step of any rank does not know it.

    Attributes:
        padding_share: 1 - non_padding / processed.
        non_padding_tokens_per_second: ``non_padding`` / the largest ``training_seconds`` of any rank: evaluations,
            saves and all that lies outside the training loop are not in the denominator; data wait and logging are.
        processed_tokens_per_second: ``processed`` / the same.
    """

    processed: int | None
    non_padding: int | None
    loss_bearing: int | None
    padding_share: float | None
    non_padding_tokens_per_second: float | None
    processed_tokens_per_second: float | None


@dataclass(frozen=True)
class SequenceAccount:
    """The sequences of all ranks; None where a step of any rank does not know them.

    Attributes:
        samples: documents: examples, or pieces of one that packing has cut.
        length_buckets: documents by length: upper bound of a bucket in tokens, as text, to how many are in it.
        samples_per_second: ``samples`` / the largest ``training_seconds`` of any rank.
        fill_rate: share of the packs' positions that hold tokens, over the data set as it was packed; None without
            packing.
    """

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

    Attributes:
        model_flops: what the mathematics needs; None where it cannot be counted.
        hardware_flops: what was computed: padding, masked pairs and recompute included.
        mfu: ``model_flops`` / (the largest ``training_seconds`` of any rank * accelerators * peak).
        hfu: the same of ``hardware_flops``.
        peak_flops_per_second: of one accelerator, dense, in the dtype of the matrix products.
        peak_estimated: whether it was measured here rather than stated by the vendor.
        accelerators: of all ranks; one for each, unless a rank's model is spread over several.
    """

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
    """One evaluation.

    Attributes:
        metrics: by name, without the prefix ``eval_``; None for a figure that is not finite.
    """

    step: int
    metrics: dict[str, float | None]
    seconds: float | None = None


@dataclass(frozen=True)
class LoaderAccount:
    """What the data loader of rank 0 did in the training (see ``StepLoader``, whose sums these are).

    Attributes:
        steps: optimizer steps in which it was watched.
        batches: that the trainer took; the last ones may never have been trained on.
        wait_seconds: the trainer waited for them; loading itself is a part of it where there are no workers.
        start_seconds, end_seconds: starting and ending epochs, with their workers.
        mean_ready: batches that lay ready when one was asked for; None without workers.
    """

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
    """Bytes of one kind of tensor on the device that trains (the host's memory on a CPU), on rank 0.

    Attributes:
        name: ``weights``, ``adapter``, ``gradients``, ``optimizer_state``, ``activations``, ``logits``, ``rest``.
        how: ``exact``: the tensors were counted; ``measured``: counted in one forward, see ``note``; ``derived``: what
            is left of a measured peak.
    """

    name: str
    bytes: int
    how: Literal["exact", "measured", "derived"]
    note: str = ""


@dataclass(frozen=True)
class MemoryAccount:
    """Peaks of rank 0 over all processes of the run.

    Attributes:
        peak_rss_bytes: resident host memory, from the start of the process.
        device_peak_allocated_bytes: tensors on the CUDA device, as torch's allocator counts them.
    """

    peak_rss_bytes: int | None
    device_peak_allocated_bytes: int | None
    device_peak_reserved_bytes: int | None
    device_allocation_retries: int | None
    phase_peak_allocated_bytes: dict[str, int] | None = None
    categories: list[MemoryCategory] = field(default_factory=list)


@dataclass(frozen=True)
class EnergyPart:
    """What one meter told.

    Attributes:
        name: ``GPU 0``, ``CPU package 0``, ``CPU``.
        missing_seconds: the rest of the wall time of the processes that it was read in: before its first reading, since
            the meters are read from where the run knows its output directory, and where it did not tell.
        note: what it meters, or how an estimate was made.
    """

    name: str
    joules: float
    source: Literal["nvml", "rapl", "estimate"]
    estimated: bool
    covered_seconds: float
    missing_seconds: float
    note: str = ""


@dataclass(frozen=True)
class EnergyAccount:
    """Energy of the run's machines, all of its processes and ranks: what the meters told, without cooling.

    Attributes:
        phase_joules: the energy by phase of rank 0, ``unattributed`` included, shared out by the readings' times (see
            ``accounting/money.py``); None where there is no part.
        co2e_grams: ``joules`` times the grid's intensity; None where there is no part.
    """

    joules: float | None = None
    estimated: bool = False
    parts: list[EnergyPart] = field(default_factory=list)
    phase_joules: dict[str, float] | None = None
    co2e_grams: float | None = None
    grid_grams_per_kwh: float | None = None
    grid_source: str | None = None


@dataclass(frozen=True)
class BudgetAccount:
    """The limits of a run.

    Attributes:
        reached: in words, which limit ended the run; None where none did.
    """

    usd: float | None = None
    hours: float | None = None
    kwh: float | None = None
    reached: str | None = None
    reached_at_step: int | None = None


@dataclass(frozen=True)
class MoneyAccount:
    """What the wall time of the run cost.

    Attributes:
        cost_usd: ``wall_seconds`` of each process at the price that it stated; None where that is unknown.
        phase_usd: by phase, ``unattributed`` included: they sum up to ``cost_usd``.
        price_usd_per_hour: of everything that the run occupies, in its last process.
        lowest_price_usd_per_hour, highest_price_usd_per_hour: among all processes, where they had different ones; else
            None.
        estimated: whether nobody said what is paid, so that it is the median of list prices.
    """

    cost_usd: float | None = None
    usd_per_million_non_padding_tokens: float | None = None
    phase_usd: dict[str, float] | None = None
    price_usd_per_hour: float | None = None
    price_source: str | None = None
    estimated: bool = False
    budget: BudgetAccount | None = None
    lowest_price_usd_per_hour: float | None = None
    highest_price_usd_per_hour: float | None = None
