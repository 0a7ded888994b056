"""The account of a run, as ``run.json`` holds it. None: not known, never zero; ``not_measured`` says why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_efficient.records.preflight import Preflight
from hf_efficient.records.profile import ProfileAccount

__all__ = [
    "ACCOUNT_SCHEMA_VERSION",
    "AcrossRanks",
    "BudgetAccount",
    "EnergyAccount",
    "EnergyPart",
    "Evaluation",
    "LoaderAccount",
    "MemoryAccount",
    "MemoryCategory",
    "MoneyAccount",
    "NotMeasured",
    "PhaseSkew",
    "PlanAccount",
    "PlanFigure",
    "ProcessAccount",
    "RankAccount",
    "RecordedBy",
    "RunAccount",
    "SequenceAccount",
    "StepTimes",
    "TimeAccount",
    "TokenAccount",
    "TrainingAccount",
    "WorkAccount",
]

RecordedBy = Literal["recipe", "trainer", "callback", "unknown"]
ACCOUNT_SCHEMA_VERSION = 2
"""Version of ``run.json``; grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class NotMeasured:
    """One thing that the account leaves out, and the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class TrainingAccount:
    """One call of ``train()`` on rank 0: a part of its process, whose time is counted there.

    Attributes:
        segment: its number in the records, from 0; a resumed run counts on.
        called_at_seconds: when, counted from the start of the process.
        wall_seconds: from there to its end; where no end was recorded, to the end of its last step, or to the last sign
            of a process that died in it.
        steps: optimizer steps recorded.
        first_step, last_step: the Trainer's numbers of the first and the last of them.
        time_to_first_step_seconds: from the call to the end of the first step.
        ended: ``done``; ``stopped``; ``error``; ``died``: its process did; None: older records, which do not tell.
        error: kind and first line of the exception.
    """

    segment: int
    called_at_seconds: float
    wall_seconds: float
    steps: int
    first_step: int | None
    last_step: int | None
    time_to_first_step_seconds: float | None
    ended: Literal["done", "stopped", "error", "died"] | None
    error: str | None


@dataclass(frozen=True)
class ProcessAccount:
    """The host time of one process that the run lived in, on rank 0; a resumed run has several.

    Attributes:
        process: number of the process in the records, from 0.
        began_at_seconds: where the run took the process over, counted from the start of the process; 0 for the first
            run in it.
        wall_seconds: from there to the end of the run, or to its last sign of life.
        phase_seconds: exclusive seconds per phase that occurred; with ``unattributed_seconds`` they sum up to the wall.
        unattributed_seconds: what no phase claimed.
        time_to_first_step_seconds: from ``began_at_seconds`` to the end of the first optimizer step, with the logging,
            evaluation and saving that follow it.
        steps: optimizer steps recorded.
        first_step, last_step: the Trainer's numbers of the first and the last of them.
        ended: ``done``; ``stopped``: it was asked to end, and saved; ``error``: an exception ended it; ``died``: no end
            was recorded, since it was killed or still runs, and ``last_sign_at_seconds`` tells until when it is known
            to have lived.
        error: kind and first line of the exception; after which step it stopped.
        open_phase: what was under way at the last sign of life of a process that died.
        last_sign_at_seconds: time of the last record, counted from the start of the process.
        process_start_from: what told the start of the process: ``kernel`` (to 10 ms), ``psutil`` (wall clock, to about
            a second), ``import`` (unknown: counted from the import of hf_efficient), ``records`` (older records, from
            the first step on).
        trainings: its ``train()`` calls, in order.
    """

    process: int
    began_at_seconds: float
    wall_seconds: float
    phase_seconds: dict[str, float]
    unattributed_seconds: float
    time_to_first_step_seconds: float | None
    steps: int
    first_step: int | None
    last_step: int | None
    ended: Literal["done", "stopped", "error", "died"]
    error: str | None
    open_phase: str | None
    last_sign_at_seconds: float
    process_start_from: Literal["kernel", "psutil", "import", "records"]
    trainings: list[TrainingAccount] = field(default_factory=list)


@dataclass(frozen=True)
class RestartAccount:
    """A process after the first: the run went on, by hand or by its launcher. Its time is counted with its process.

    Attributes:
        process: its number.
        last_step_before: the last step that had been done; None: none had.
        resumed_after_step: the step of the checkpoint that it went on from, 0 for none; None: it never came to train.
        steps_again: that had been done before, and were lost.
        seconds_again: what they had taken, without evaluations and checkpoints.
        start_seconds: from the start of the process to its first step; all of it where it never came to one.
        cost_usd: of both; None where no price is known.
    """

    process: int
    last_step_before: int | None
    resumed_after_step: int | None
    steps_again: int
    seconds_again: float
    start_seconds: float
    cost_usd: float | None


@dataclass(frozen=True)
class TimeAccount:
    """Host time of rank 0, all processes of the run added up.

    Attributes:
        wall_seconds: sum of the processes' walls; what lay between them belongs to nobody.
        phase_seconds: exclusive seconds per phase.
        device_seconds: seconds on the device per phase, by device events, with ``exposed_wait``; None without them.
        unattributed_seconds: what no phase claimed.
        training_seconds: wall time of the optimizer steps without evaluation and checkpointing: with data wait, logging
            and what is unattributed inside the loop. The denominator of every throughput.
        time_to_first_step_seconds: of the first process.
        processes: each by itself.
    """

    wall_seconds: float
    phase_seconds: dict[str, float]
    unattributed_seconds: float
    training_seconds: float
    time_to_first_step_seconds: float | None
    processes: list[ProcessAccount]
    device_seconds: dict[str, float] | None = None


@dataclass(frozen=True)
class StepTimes:
    """Times of the optimizer steps of rank 0, each without its evaluation and checkpointing.

    Attributes:
        count: steps recorded; one done again after a resumption counts again.
        warm_up_count: steps set apart from the percentiles.
        warm_up_rule: which those are.
        p50_seconds, p95_seconds, p99_seconds: percentiles of the others, linear between neighbours.
        max_seconds: the longest of the others.
        warm_up_max_seconds: the longest of those set apart.
    """

    count: int
    warm_up_count: int
    warm_up_rule: str
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    max_seconds: float | None
    warm_up_max_seconds: float | None


@dataclass(frozen=True)
class TokenAccount:
    """Tokens of all ranks; a count is None where a step of any rank does not know it.

    Attributes:
        processed: positions computed, padding included.
        non_padding: positions that are no padding.
        loss_bearing: positions with a label.
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
        rows: rows of the batches; a padding-free batch is one row.
        samples: documents: examples, or pieces of one that packing has cut.
        mean_tokens: non-padding tokens per document.
        shortest_tokens, longest_tokens: of a document.
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
        peak_source: where that figure comes from.
        peak_estimated: whether it was measured here rather than stated by the vendor.
        accelerators: of all ranks; one for each, unless a rank's model is spread over several.
        dtype: of the matrix products.
        reason: why a figure is unknown.
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
class MemoryCategory:
    """Bytes of one kind of tensor on the device that trains (the host's memory on a CPU), on rank 0.

    Attributes:
        name: ``weights``, ``adapter``, ``gradients``, ``optimizer_state``, ``activations``, ``logits``, ``rest``.
        bytes: of the storages, each counted once.
        how: ``exact``: the tensors were counted; ``measured``: counted in one forward, see ``note``; ``derived``: what
            is left of a measured peak.
        note: when, and on what.
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
        device_peak_reserved_bytes: what the allocator held of the device.
        device_allocation_retries: times that it had to free its cache to allocate.
        phase_peak_allocated_bytes: the device's peak within each phase; None without a CUDA device.
        categories: what the memory was used for; empty where it was not looked at.
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
        joules: energy over ``covered_seconds``.
        source: ``nvml``, ``rapl``, or ``estimate``.
        estimated: nothing was measured.
        covered_seconds: time that ``joules`` is of.
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
        joules: sum of the parts; None where there is no part.
        estimated: whether any part is an estimate.
        parts: meter by meter.
        phase_joules: the energy by phase of rank 0, ``unattributed`` included, shared out by the readings' times (see
            ``account/energy.py``); None where there is no part.
        co2e_grams: ``joules`` times the grid's intensity; None where there is no part.
        grid_grams_per_kwh, grid_source: that intensity, and where it comes from.
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
        usd, hours, kwh: the limits; None where there is none.
        reached: in words, which limit ended the run; None where none did.
        reached_at_step: after which step.
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
        usd_per_million_non_padding_tokens: of the whole cost.
        phase_usd: by phase, ``unattributed`` included: they sum up to ``cost_usd``.
        price_usd_per_hour: of everything that the run occupies, in its last process.
        lowest_price_usd_per_hour, highest_price_usd_per_hour: among all processes, where they had different ones; else
            None.
        price_source: where that of the last process comes from, with its date.
        estimated: whether nobody said what is paid, so that it is the median of list prices.
        budget: None where there is none.
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


@dataclass(frozen=True)
class Evaluation:
    """One evaluation.

    Attributes:
        step: optimizer steps done before it.
        metrics: by name, without the prefix ``eval_``; None for a figure that is not finite.
        seconds: wall time.
    """

    step: int
    metrics: dict[str, float | None]
    seconds: float | None = None


@dataclass(frozen=True)
class PlanFigure:
    """One figure, as it was planned and as it came.

    Attributes:
        name: with its unit: ``weights_bytes``, ``step_seconds``, ``training_cost_usd``, ...
        predicted: None where it could not be told.
        observed: None where it was not measured, or is of something else.
        relative_error: ``predicted`` / ``observed`` - 1, or what ``note`` says; None where either is not known.
        note: why one is not known, or what they are of.
    """

    name: str
    predicted: float | None
    observed: float | None
    relative_error: float | None
    note: str = ""


@dataclass(frozen=True)
class PlanAccount:
    """What was planned before the run, beside what it came to.

    Attributes:
        device: what it was planned on.
        steps: optimizer steps planned.
        figures: peaks and kinds of memory, then the training loop: speed, time, cost, energy, without evaluations and
            saves.
    """

    device: str
    steps: int
    figures: list[PlanFigure]


@dataclass(frozen=True)
class RankAccount:
    """What is known of one rank.

    Attributes:
        rank: its number.
        steps: optimizer steps recorded.
        last_step: the Trainer's number of the last of them.
        training_seconds: wall time of its steps without evaluation and checkpointing.
        host: name of its machine; None in older records.
        device: that trains in it: the GPU's name with its index, or ``cpu``.
        phase_seconds: exclusive host seconds of its training loop per phase.
        waited_seconds: of them, the host time in which it waited for other ranks: ``communication``, and collectives
            within logging, evaluations and saves. None where waits were not told apart, or the device tells.
        device_seconds: seconds on its device per phase; None without device events.
        peak_rss_bytes: resident host memory, from the start of the process.
        device_peak_allocated_bytes, device_peak_reserved_bytes: of its CUDA device.
        memory_categories: what the rank itself held, as far as it was counted; nothing is derived.
    """

    rank: int
    steps: int
    last_step: int | None
    training_seconds: float
    host: str | None = None
    device: str | None = None
    phase_seconds: dict[str, float] | None = None
    waited_seconds: float | None = None
    device_seconds: dict[str, float] | None = None
    peak_rss_bytes: int | None = None
    device_peak_allocated_bytes: int | None = None
    device_peak_reserved_bytes: int | None = None
    memory_categories: list[MemoryCategory] = field(default_factory=list)


@dataclass(frozen=True)
class PhaseSkew:
    """The rank that took the longest in a phase, waits for others apart, over the training loop.

    Attributes:
        phase: its name.
        rank: which.
        host, device: where it ran, as in ``RankAccount``.
        own_seconds: of it.
        extra_seconds: those less the median of the other ranks': about what the others waited for it, as far as they
            were not late themselves.
        usd: what so much of the run's time costs; None where its price is not known.
        on_device: whether the device's events told it.
    """

    phase: str
    rank: int
    host: str | None
    device: str | None
    own_seconds: float
    extra_seconds: float
    usd: float | None
    on_device: bool


@dataclass(frozen=True)
class AcrossRanks:
    """What training on several ranks cost beside what each had to do.

    Attributes:
        ranks: that trained.
        hosts: machines; None where they told no names.
        skew: by phase, the most extra seconds first.
        exposed_seconds: that the rank which waited least spent in communication: what is left of it where nobody is
            late. None where waits were not told apart.
        late_seconds: that the ranks waited beyond that, their mean: for ranks that came later.
        exposed_by: ``device``: events in its queue of work; ``host``: the time that the host waited, on a CPU. Both
            are an estimate of what nothing covers; what computation covers, a trace tells.
        exposed_usd, late_usd: of these, at the run's price for all ranks.
        covered_seconds: that gradients were on their way while the rank still computed: an estimate, from DDP's own log
            of some steps of the rank with the shortest exchange. None without that log.
    """

    ranks: int
    hosts: int | None
    skew: list[PhaseSkew]
    exposed_seconds: float | None = None
    late_seconds: float | None = None
    exposed_by: Literal["device", "host"] | None = None
    exposed_usd: float | None = None
    late_usd: float | None = None
    covered_seconds: float | None = None


@dataclass(frozen=True)
class LoaderAccount:
    """What the data loader of rank 0 did in the training (see ``StepLoader``, whose sums these are).

    Attributes:
        steps: optimizer steps in which it was watched.
        epochs: times that an epoch was started.
        batches: that the trainer took; the last ones may never have been trained on.
        rows: of them; None where a batch told none.
        bytes: of their tensors.
        wait_seconds: the trainer waited for them; loading itself is a part of it where there are no workers.
        first_wait_seconds: of that, for the first batch of each epoch.
        start_seconds, end_seconds: starting and ending epochs, with their workers.
        fetched: batches that were loaded, by all processes that load.
        fetch_seconds, fetch_cpu_seconds, fetch_process_cpu_seconds: in the data set, wall and CPU.
        collate_seconds, collate_cpu_seconds, collate_process_cpu_seconds: in the collator.
        core_wait_seconds: of both, ready to run and waiting for a core.
        read_bytes: from the disk, as far as the system says.
        mean_ready: batches that lay ready when one was asked for; None without workers.
        workers, prefetch_factor, persistent_workers, pin_memory: how the loader was set up; None where it is not known.
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
class RunAccount:
    """Where the time, the tokens and the memory of a run went.

    Attributes:
        schema_version: of this layout.
        hf_efficient_version: what built the account.
        recorded_by: ``recipe``, ``trainer`` (the mixin in a script of its own), ``callback`` (alone in a plain
            Trainer), ``unknown`` (older records).
        ended: of the last process.
        error: of the last process.
        environment: versions and hardware of the last process that told them, as ``hf-efficient env --json`` does; None
            in older records.
        plan: None where the run was not planned.
        profile: None where no deeper instrument was switched on.
        loader: None where no data loader was watched.
        across: what came of training on several ranks; None of one.
        preflight: None where nothing was proven before the run.
        restarts: what it took to go on, once for every process after the first.
    """

    schema_version: int
    hf_efficient_version: str
    recorded_by: RecordedBy
    ended: Literal["done", "stopped", "error", "died"]
    error: str | None
    time: TimeAccount
    steps: StepTimes
    tokens: TokenAccount
    memory: MemoryAccount
    sequences: SequenceAccount
    work: WorkAccount
    energy: EnergyAccount
    money: MoneyAccount
    evaluations: list[Evaluation]
    ranks: list[RankAccount]
    not_measured: list[NotMeasured]
    environment: dict[str, Any] | None = None
    plan: PlanAccount | None = None
    profile: ProfileAccount | None = None
    loader: LoaderAccount | None = None
    across: AcrossRanks | None = None
    preflight: Preflight | None = None
    restarts: list[RestartAccount] = field(default_factory=list)
