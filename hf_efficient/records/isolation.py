"""What short controlled variants of a recipe took, and where an optimizer step's time goes by their differences."""

from dataclasses import dataclass, field

from hf_efficient.records.findings import Diagnosis

ISOLATION_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class IsolationSchedule:
    """What the recipe says of the whole run, as far as a variant changes it. The three distances are in optimizer
    steps; None: never, or at no fixed one. ``accumulation`` is micro-batches of a step; ``workers``, ``cores`` and
    ``threads`` are of each process."""

    steps: int
    log_every: int | None
    evaluate_every: int | None
    save_every: int | None
    micro_batch_rows: int
    accumulation: int
    processes: int
    workers: int
    cores: float
    threads: int
    device: str
    best_at_end: bool = False
    evaluation_rows: int = 0


@dataclass(frozen=True)
class VariantMeasurement:
    """One run of one variant, in a process of its own; lists hold an entry per measured step. ``step_seconds``: from
    the end of the optimizer step before; of the loader alone, of its batches. ``step_tokens``: positions computed,
    padding included; 0 where unknown. ``micro_batch_seconds``, ``micro_batch_tokens``: forward and backward of a mean
    micro-batch, and its positions. ``read_seconds``: reading the sources, a first time; ``prepare_seconds`` also has
    formatting, tokenising and packing."""

    step_seconds: list[float] = field(default_factory=list)
    step_tokens: list[int] = field(default_factory=list)
    step_micro_batches: list[int] = field(default_factory=list)
    step_logged: list[bool] = field(default_factory=list)
    evaluation_seconds: list[float] = field(default_factory=list)
    save_seconds: list[float] = field(default_factory=list)
    micro_batch_seconds: list[float] = field(default_factory=list)
    micro_batch_tokens: list[float] = field(default_factory=list)
    cpu_seconds: float | None = None
    examples: int | None = None
    tokens: int | None = None
    read_seconds: float | None = None
    prepare_seconds: float | None = None
    schedule: IsolationSchedule | None = None


@dataclass(frozen=True)
class VariantOutcome:
    """A variant, as often as it ran; texts are empty where nothing failed or it was not left out."""

    name: str
    what: str
    runs: list[VariantMeasurement] = field(default_factory=list)
    failure: str = ""
    left_out: str = ""


@dataclass(frozen=True)
class StepPart:
    """A part of an optimizer step's time, per step; 0 where the difference lies within its spread. ``low`` and ``high``
    hold it with 95%, the medians of all rounds included; None where it was timed once. ``how`` says which variants it
    is the difference of."""

    name: str
    seconds: float | None
    low: float | None
    high: float | None
    rounds: int
    how: str
    note: str = ""


@dataclass(frozen=True)
class PauseTimes:
    """Logs, evaluations and saves: the median of those that were timed; None: not known, or there is none."""

    log_seconds: float | None
    evaluation_seconds: float | None
    save_seconds: float | None


@dataclass(frozen=True)
class LoaderAlone:
    """The data loader alone: the median step, tokens with padding, CPU of all loading processes."""

    step_seconds: float
    tokens_per_second: float | None
    model_step_seconds: float | None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class TokenisationAlone:
    """The recipe's sources through the tokenizer, the cache bypassed. ``read_seconds`` is reading alone, a first time:
    the system may hold the sources in memory later."""

    examples: int
    tokens: int
    seconds: float
    read_seconds: float
    examples_per_second: float
    tokens_per_second: float


@dataclass(frozen=True)
class MicroBatchLine:
    """Forward and backward of a micro-batch over its tokens, from micro-batches of half, one and two times the rows.
    ``fixed_seconds``: of a micro-batch before it holds anything; ``token_seconds``: of each token more.
    ``doubled_positions``: positions of twice the rows over twice the positions: above 1 by padding."""

    fixed_seconds: float
    token_seconds: float
    seconds: float
    tokens: float
    points: int
    variants: list[str]
    doubled_positions: float | None = None


@dataclass(frozen=True)
class Isolation:
    """A recipe by its variants, in the order of their first runs; parts that were not measured are None.
    ``step_seconds``: as the recipe is, with its share of evaluations and saves; less known ``parts``:
    ``unexplained_seconds``. ``tokens_per_second``: positions, padding included, over ``step_seconds``.
    ``forward_without_graph_seconds``: the forward of a step under ``torch.no_grad``."""

    schema_version: int
    hf_efficient_version: str
    recipe: str
    steps: int
    warm_up: int
    schedule: IsolationSchedule
    variants: list[VariantOutcome]
    step_seconds: float
    parts: list[StepPart]
    unexplained_seconds: float
    tokens_per_second: float | None
    pauses: PauseTimes
    loader: LoaderAlone | None
    tokenisation: TokenisationAlone | None
    micro_batch: MicroBatchLine | None
    forward_without_graph_seconds: float | None
    price_usd_per_hour: float | None
    notes: list[str]
    diagnosis: Diagnosis | None = None

    def part(self, name: str) -> StepPart | None:
        """By its name; None where it does not apply."""
        return next((one for one in self.parts if one.name == name), None)

    @property
    def loop_seconds(self) -> float:
        """Of the whole run's training loop, evaluations and saves included: an estimate."""
        return self.step_seconds * self.schedule.steps
