"""The account of a run, as ``run.json`` holds it, and the run over its time, thinned for plots: columns of equal
length, one entry per bucket. None: not known, never zero; ``not_measured`` says why.

*Run time* is the axis of all plots: the walls of the run's processes put end to end, so that a resumed run has one axis
without the time that lay between its processes.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_efficient.records import amounts
from hf_efficient.records.events import Ended, RecordedBy, StartFrom
from hf_efficient.records.prepared import PreparedFacts
from hf_efficient.records.profile import ProfileAccount


@dataclass(frozen=True)
class TrainingAccount:
    """One call of ``train()`` on rank 0: a part of its process, whose time is counted there. Where no end was recorded,
    ``wall_seconds`` ends with the last step or, where the process died, the last heartbeat. ``segment`` counts from 0,
    over resumed runs too. ``ended`` is None in older records."""

    segment: int
    called_at_seconds: float
    wall_seconds: float
    steps: int
    first_step: int | None
    last_step: int | None
    time_to_first_step_seconds: float | None
    ended: Ended | None
    error: str | None


@dataclass(frozen=True)
class ProcessAccount:
    """The host time of one process that the run lived in, on rank 0; a resumed run has several.

    ``began_at_seconds``: where the run took the process over, from the start of the process; 0 for its first run.
    ``wall_seconds``: from there to the end of the run or its last heartbeat: ``phase_seconds`` +
    ``unattributed_seconds``. ``time_to_first_step_seconds``: from there to the end of the first optimizer step, with
    the logging, evaluation and saving that follow it. ``ended``: ``died``: no end was recorded, since it was killed or
    still runs; ``last_sign_at_seconds`` is the last record."""

    process: int
    began_at_seconds: float
    wall_seconds: float
    phase_seconds: dict[str, float]
    unattributed_seconds: float
    time_to_first_step_seconds: float | None
    steps: int
    first_step: int | None
    last_step: int | None
    ended: Ended
    error: str | None
    open_phase: str | None
    last_sign_at_seconds: float
    process_start_from: StartFrom
    trainings: list[TrainingAccount] = field(default_factory=list)


@dataclass(frozen=True)
class RestartAccount:
    """A process after the first: the run went on, by hand or by its launcher. Its time is counted with its process.
    ``resumed_after_step``: the step of the checkpoint, 0 for none; None: it never came to train. ``steps_again``,
    ``seconds_again``: steps lost and done again, without evaluations and checkpoints; ``cost_usd`` has both.
    ``start_seconds``: from the start of the process to its first step, or all of it."""

    process: int
    last_step_before: int | None
    resumed_after_step: int | None
    steps_again: int
    seconds_again: float
    start_seconds: float
    cost_usd: float | None


@dataclass(frozen=True)
class BadputAccount:
    """What checkpoints and failures cost, in host time of rank 0: waiting for saves, starts of the processes after the
    first, steps done again. ``share``: of the run's wall time; ``cost_usd``: of all three. ``undone_seconds``: what one
    more failure would undo, an estimate: half of the training time between two saves; None where there is no save."""

    saves: int
    checkpoint_seconds: float
    restart_seconds: float
    again_seconds: float
    share: float
    cost_usd: float | None
    undone_seconds: float | None


@dataclass(frozen=True)
class FaultAccount:
    """Steps of rank 0 that came out wrong, over all processes of the run, and what became of them. ``rolled_back``:
    of them, those that went back to a checkpoint; ``out_of_memory``: times, not steps; ``saves_failed``,
    ``mirrors_failed``: checkpoints that were not written, or not copied to their second place."""

    not_finite: int = 0
    spikes: int = 0
    skipped: int = 0
    rolled_back: int = 0
    out_of_memory: int = 0
    saves_failed: int = 0
    mirrors_failed: int = 0


@dataclass(frozen=True)
class HeldTime:
    """What a callback, or a method of the user's own, took in a phase of the training loop, without others inside it.
    ``name`` is ``Class.method``; ``share`` is of the loop, with its evaluations and checkpoints."""

    name: str
    phase: str
    seconds: float
    share: float

    @property
    def is_callback(self) -> bool:
        return self.name.rpartition(".")[2].startswith("on_")


@dataclass(frozen=True)
class TimeAccount:
    """Host time of rank 0, all processes of the run added up. ``wall_seconds``: what lay between the processes belongs
    to none. ``training_seconds``: wall time of the optimizer steps without evaluation and checkpointing: with data
    wait, logging and what is unattributed inside the loop. The denominator of every throughput. ``held``: the longest
    first; what took less than a thousandth of its step is left out."""

    wall_seconds: float
    phase_seconds: dict[str, float]
    unattributed_seconds: float
    training_seconds: float
    time_to_first_step_seconds: float | None
    processes: list[ProcessAccount]
    device_seconds: dict[str, float] | None = None
    held: list[HeldTime] = field(default_factory=list)


@dataclass(frozen=True)
class StepTimes:
    """Times of the optimizer steps of rank 0, each without its evaluation and checkpointing. A step repeated after a
    resumption counts again. Percentiles are of the steps after warm-up, linear between neighbours."""

    count: int
    warm_up_count: int
    warm_up_rule: str
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    max_seconds: float | None
    warm_up_max_seconds: float | None


@dataclass(frozen=True)
class RankAccount:
    """What is known of one rank. ``training_seconds``: wall time of its steps without evaluation and checkpointing.
    ``waited_seconds``: of them, the host time in which it waited for other ranks: ``communication``, and collectives
    within logging, evaluations and saves. None where waits were not told apart, or on a device. ``memory_categories``:
    what the rank itself held, where it was counted; nothing is derived."""

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
    memory_categories: list[amounts.MemoryCategory] = field(default_factory=list)


@dataclass(frozen=True)
class PhaseSkew:
    """The rank that took the longest in a phase, waits for others apart, over the training loop. ``extra_seconds`` is
    its own time less the median of the others: about what they waited for it, if on time themselves."""

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

    ``exposed_seconds``: communication on the rank that waited least; None where waits were not told apart.
    ``late_seconds``: what the ranks waited beyond that, on average, for late ranks. ``exposed_by``: ``device``: events
    in its queue; ``host``: the wait of the host, on a CPU. Both are estimates. ``covered_seconds``: gradients were on
    their way while the rank computed: an estimate from DDP's own log of some steps."""

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
class PlanFigure:
    """One figure, as it was planned and as it came. ``name`` ends in its unit; ``relative_error`` is ``predicted`` /
    ``observed`` - 1, or what ``note`` says."""

    name: str
    predicted: float | None
    observed: float | None
    relative_error: float | None
    note: str = ""


@dataclass(frozen=True)
class PlanAccount:
    """What was planned before the run, beside what it came to. The training loop's figures are without evaluations and
    saves."""

    device: str
    steps: int
    figures: list[PlanFigure]


PREFLIGHT_SCHEMA_VERSION = 1

FailureKind = Literal["memory", "save", "load", "differs", "disk", "hang", "killed", "input", "fault"]
"""``memory``: out of memory, wherever. ``input``: what the run itself would refuse. ``fault``: anything else."""


@dataclass(frozen=True)
class PreflightFailure:
    """Why the answer is no."""

    kind: FailureKind
    stage: str
    message: str
    rank: int | None = None


@dataclass(frozen=True)
class Preflight:
    """The preflight check of a run, as ``preflight.json`` holds it: its longest batch, a save, a load, the disk.

    What the check did not reach is None. Peaks and times are the largest of all ranks. ``batch_rows``,
    ``batch_tokens``: shape of the longest micro-batch, padding included. ``training_peak_bytes``: of two steps, so with
    the optimizer's state: tensors on a CUDA device, else the process. ``load_seconds``: in a new launch, until training
    stood where it was; None where nothing was loaded. ``compared_tensors``: of weights and optimizer on all ranks,
    equal bit for bit. ``checkpoints_to_come``: in the output directory at one time, at most. ``needed_bytes``,
    ``free_bytes``: on its disk, for all that is to come."""

    fingerprint: str
    passed: bool
    wall_seconds: float
    world_size: int | None = None
    device: str | None = None
    batch_rows: int | None = None
    batch_tokens: int | None = None
    micro_batches: int | None = None
    recipe_micro_batches: int | None = None
    memory_bytes: int | None = None
    training_peak_bytes: int | None = None
    evaluation_peak_bytes: int | None = None
    evaluation_rows: int | None = None
    checkpoint_bytes: int | None = None
    model_bytes: int | None = None
    save_seconds: float | None = None
    load_seconds: float | None = None
    compared_tensors: int | None = None
    next_loss: float | None = None
    next_loss_after_load: float | None = None
    checkpoints_to_come: int | None = None
    needed_bytes: int | None = None
    free_bytes: int | None = None
    failure: PreflightFailure | None = None
    schema_version: int = PREFLIGHT_SCHEMA_VERSION


ACCOUNT_SCHEMA_VERSION = 3
"""Version of ``run.json``; grows, as those of other records do, when a key changes its meaning or goes."""


@dataclass(frozen=True)
class NotMeasured:
    """One thing that the account leaves out, and the reason."""

    what: str
    why: str


@dataclass(frozen=True)
class RunAccount:
    """Where the time, the tokens and the memory of a run went. ``recorded_by``: ``recipe``, ``trainer`` (the mixin in a
    script), ``callback`` (in a plain Trainer), ``unknown``. ``environment``: of the last process, as
    ``hf-efficient env --json``; None in older records."""

    schema_version: int
    hf_efficient_version: str
    recorded_by: RecordedBy
    ended: Ended
    error: str | None
    time: TimeAccount
    steps: StepTimes
    tokens: amounts.TokenAccount
    memory: amounts.MemoryAccount
    sequences: amounts.SequenceAccount
    work: amounts.WorkAccount
    energy: amounts.EnergyAccount
    money: amounts.MoneyAccount
    evaluations: list[amounts.Evaluation]
    ranks: list[RankAccount]
    not_measured: list[NotMeasured]
    environment: dict[str, Any] | None = None
    plan: PlanAccount | None = None
    profile: ProfileAccount | None = None
    loader: amounts.LoaderAccount | None = None
    across: AcrossRanks | None = None
    preflight: Preflight | None = None
    restarts: list[RestartAccount] = field(default_factory=list)
    preferences: amounts.PreferenceAccount | None = None
    faults: FaultAccount | None = None  # None: nothing went wrong, or nobody looked
    badput: BadputAccount | None = None  # None: no save, and no restart
    prepared: PreparedFacts | None = None  # None: the recipe has no data.pipeline


@dataclass(frozen=True)
class Band:
    """One quantity over the buckets: smallest, mean and largest reading; None where a bucket has none."""

    low: list[float | None] = field(default_factory=list)
    mean: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)


@dataclass(frozen=True)
class StepSeries:
    """Optimizer steps of rank 0: a bucket is consecutive steps of one ``train()`` call, all but its last equally many.

    Seconds of single steps are without evaluation and checkpointing. Tokens are sums on rank 0, None where a step does
    not know them. ``first_step``, ``last_step``: the Trainer's numbers. ``started_at_seconds``: run time at the start
    of the first. ``phase_seconds``: sums by phase, with ``unattributed``; 0 where a phase did not occur. ``loss``,
    ``learning_rate``, ``grad_norm``: the last logged, if finite; extremes are of all that are finite. ``preferences``:
    the last logged by name (see ``PREFERENCES``); empty of other trainers."""

    segment: list[int]
    steps: list[int]
    first_step: list[int]
    last_step: list[int]
    started_at_seconds: list[float]
    wall_seconds: list[float]
    step_seconds_mean: list[float]
    phase_seconds: dict[str, list[float]]
    processed_tokens: list[int | None]
    non_padding_tokens: list[int | None]
    target_tokens: list[int | None]
    loss: list[float | None]
    loss_min: list[float | None]
    loss_max: list[float | None]
    learning_rate: list[float | None]
    grad_norm: list[float | None]
    not_finite: list[int]
    preferences: dict[str, list[float | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.segment)


@dataclass(frozen=True)
class Histogram:
    """How often which value occurred. ``scale``: ``log`` where the largest value is more than four times the smallest.
    ``counts``: from an edge up to the next, which belongs to the next count, except the last."""

    scale: Literal["linear", "log"] = "linear"
    edges: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class SystemSeries:
    """What the sampler saw of the machine of rank 0: a bucket is consecutive readings of one process.
    ``started_at_seconds`` and ``ended_at_seconds`` are run time. ``host`` and ``gpus`` are named as in
    ``recording/probes.py``. ``throttled`` has shares of readings by GPU and reason."""

    process: list[int] = field(default_factory=list)
    started_at_seconds: list[float] = field(default_factory=list)
    ended_at_seconds: list[float] = field(default_factory=list)
    rss_bytes: Band = field(default_factory=Band)
    host_available_bytes: Band = field(default_factory=Band)
    device_allocated_bytes: Band = field(default_factory=Band)
    device_reserved_bytes: Band = field(default_factory=Band)
    watts: dict[str, Band] = field(default_factory=dict)
    host: dict[str, Band] = field(default_factory=dict)
    gpus: dict[str, dict[str, Band]] = field(default_factory=dict)
    throttled: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.process)


@dataclass(frozen=True)
class RunSeries:
    """A run over its time; the histogram is of steps after warm-up, without evaluation and checkpointing."""

    process_starts_seconds: list[float]
    steps: StepSeries
    step_seconds: Histogram
    system: SystemSeries
