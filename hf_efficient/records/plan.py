"""What a plan says before a run, in the words and units of the run's account."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_efficient.records.planned_advice import PlannedAdvice, PlannedBatching, PlannedLargest
from hf_efficient.records.planned_gpu import PlannedGpu
from hf_efficient.records.planned_memory import PlannedMemory
from hf_efficient.records.planned_ranks import PlannedRanks

__all__ = ["PLAN_SCHEMA_VERSION", "Plan", "PlannedData"]

PLAN_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class PlannedData:
    """The data of the run, where they were read.

    Attributes:
        examples: to train on.
        tokens: of them all.
        longest_tokens: of the longest.
        padding_share: of the positions of a mean step.
        evaluation_rows: to evaluate on; 0 where the run evaluates nothing.
        evaluations: how often.
        batchings: the kinds of batches that these examples could make; empty where packs have cut them.
    """

    examples: int
    tokens: int
    longest_tokens: int
    padding_share: float
    evaluation_rows: int
    evaluations: int
    batchings: list[PlannedBatching] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """A recipe before it runs.

    Attributes:
        recipe, model, adapter: what was planned.
        parameters, trained_parameters: of the model, adapters included.
        micro_batch_rows, row_tokens, micro_batches: the shape of an optimizer step.
        steps: of the run; None where the recipe alone does not tell.
        flops_per_step: that the operators of a step do; of the largest one, where the data were read.
        memory: on any device.
        gpus: on each accelerator, those that fit first, the cheapest per token first.
        assumptions: what the plan takes for granted.
        advice: what to change; None where it was not asked for.
        largest: the most that fits; None where it was not asked for.
        data: of the run; None where they were not read.
        ranks: how the run is spread over GPUs; None where one process trains alone. Memory is of one rank, and so is
            the shape of a step; FLOPs, tokens, money and energy are of all.
    """

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
    schema_version: int = PLAN_SCHEMA_VERSION

    @property
    def step_rows(self) -> tuple[int, ...]:
        """What a step's tokens are the product of: ranks, where there are several, micro-batches, rows, tokens."""
        of_one = (self.micro_batches, self.micro_batch_rows, self.row_tokens)
        return of_one if self.ranks is None or self.ranks.count == 1 else (self.ranks.count, *of_one)
