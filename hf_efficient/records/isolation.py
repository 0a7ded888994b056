"""What short controlled variants of a recipe took, and where an optimizer step's time goes by their differences."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_efficient.records.findings import Diagnosis

ISOLATION_SCHEMA_VERSION = 1
"""Version of the JSON; grows when a key changes its meaning or goes."""


@dataclass(frozen=True)
class IsolationSchedule:
    """What the recipe says of the whole run, as far as a variant changes it.

    Attributes:
        steps: optimizer steps of the run.
        log_every, evaluate_every, save_every: optimizer steps between two; None: never, or at no fixed distance.
        accumulation: micro-batches of an optimizer step.
        workers: of the data loader, per process.
        cores, threads: that each process may reckon with, and computes with.
        best_at_end: whether the best checkpoint is loaded at the end, so that saves follow evaluations.
        evaluation_rows: of an evaluation; 0 without one.
    """

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
    """One run of one variant, in a process of its own; lists hold an entry per measured step.

    Attributes:
        step_seconds: from the end of the optimizer step before to its end; of the loader alone, of its batches.
        step_tokens: positions computed, padding included; 0 where the batches do not say.
        step_logged: whether a log fell into it.
        evaluation_seconds, save_seconds: of each that was timed.
        micro_batch_seconds, micro_batch_tokens: forward and backward of a mean micro-batch of each step, and its
            positions, where phases were recorded.
        cpu_seconds: over all measured steps, of all threads and of the loader's workers.
        examples, tokens: that were tokenised.
        read_seconds: reading the sources, a first time.
        prepare_seconds: reading, formatting, tokenising and packing them.
        schedule: of the recipe, where the variant looked it up.
    """

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
    """A variant, as often as it ran.

    Attributes:
        what: in words.
        runs: in order; empty where it never came to its end.
        failure: why a run of it failed; empty where none did.
        left_out: why it does not apply to this recipe; empty where it does.
    """

    name: str
    what: str
    runs: list[VariantMeasurement] = field(default_factory=list)
    failure: str = ""
    left_out: str = ""


@dataclass(frozen=True)
class StepPart:
    """A part of an optimizer step's time.

    Attributes:
        name: ``data``, ``communication``, ``forward``, ``backward_optimizer``, ``instrumentation``, ``logging``,
            ``evaluation``, ``checkpointing``.
        seconds: per optimizer step; 0 where the difference lies within its spread; None where it is not known.
        low, high: where it lies with 95%, the medians of all rounds included; None where it was timed once, or is not
            known.
        rounds: how often it was measured.
        how: which variants it is the difference of, or how it was timed.
        note: ``no difference``, why it is not known, what it leaves out; empty where there is nothing to say.
    """

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
    """The data loader without a training beside it.

    Attributes:
        step_seconds: of the batches of an optimizer step, the median.
        tokens_per_second: positions, padding included; None where the batches do not say.
        model_step_seconds: what the model takes for a step whose batches lie ready; None where not known.
        cpu_seconds: of the processor for them, over all processes that load; None where not known.
    """

    step_seconds: float
    tokens_per_second: float | None
    model_step_seconds: float | None
    cpu_seconds: float | None = None


@dataclass(frozen=True)
class TokenisationAlone:
    """The recipe's sources through the tokenizer, the cache bypassed.

    Attributes:
        examples, tokens: that came out.
        seconds: reading, formatting, tokenising and packing.
        read_seconds: reading the sources alone, a first time; the system may hold them in memory the second.
        examples_per_second, tokens_per_second: over ``seconds``.
    """

    examples: int
    tokens: int
    seconds: float
    read_seconds: float
    examples_per_second: float
    tokens_per_second: float


@dataclass(frozen=True)
class MicroBatchLine:
    """Forward and backward of a micro-batch over its tokens, from micro-batches of half, one and two times the rows.

    Attributes:
        fixed_seconds: of a micro-batch before it holds anything.
        token_seconds: of each token more.
        seconds, tokens: of a micro-batch of the recipe.
        points: micro-batches that it was fitted to.
        variants: that gave them.
        doubled_positions: positions of twice the rows over twice the positions: above 1 by their padding; None where
            they were not measured.
    """

    fixed_seconds: float
    token_seconds: float
    seconds: float
    tokens: float
    points: int
    variants: list[str]
    doubled_positions: float | None = None


@dataclass(frozen=True)
class Isolation:
    """A recipe by its variants.

    Attributes:
        recipe: its name.
        steps, warm_up: measured of each run of a variant, and before them.
        variants: all, in the order of their first runs.
        step_seconds: an optimizer step as the recipe is, with its share of evaluations and saves.
        parts: of it.
        unexplained_seconds: ``step_seconds`` less the parts that are known.
        tokens_per_second: positions, padding included, over ``step_seconds``; None where the batches do not say.
        loader, tokenisation: None where it was not measured.
        micro_batch: likewise, or where micro-batches of other sizes give no line.
        forward_without_graph_seconds: the forward of a step under ``torch.no_grad``; None where it was not measured.
        price_usd_per_hour: that the recipe names; None: not known.
        notes: what the figures leave out.
        diagnosis: findings that follow; None until they are drawn.
    """

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
