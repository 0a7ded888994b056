"""What a rehearsal has told: every storage, the moments between them, and the operators of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_efficient.planning.ranks.units import Unit
from hf_efficient.planning.rehearsed_evaluation import RehearsedEvaluation
from hf_efficient.records.device import OperatorWork
from hf_efficient.simulate.tensor_log import TensorLog

if TYPE_CHECKING:
    from hf_efficient.estimate.parallelism import Sharding
    from hf_efficient.estimate.sharding import ModelStates


@dataclass(frozen=True)
class Rank:
    """One of several ranks.

    Attributes:
        sharding: how the model is spread over them.
        states: the whole of what is spread.
        layers: that are gathered one by one.
    """

    sharding: Sharding
    states: ModelStates
    layers: int


@dataclass(frozen=True)
class Rehearsal:
    """What two optimizer steps did, and an evaluation after them.

    Attributes:
        log: every storage.
        backward_starts: events before each backward.
        second_step: events before the second optimizer step.
        vocabulary: tokens that the model knows; the last dimension of its logits.
        first_step: events before the first optimizer step.
        rows, length: of a micro-batch; a pair of ``method: dpo`` is two rows.
        micro_batches: of an optimizer step of the run; more than were rehearsed, perhaps.
        operators: of such a step.
        parameters, trained_parameters: of the model, a 4-bit weight counted as the values that it stands for.
        paged_bytes: optimizer state outside of torch's allocator.
        forward_ends: events up to the end of each of the training's forwards, when the model's output is still there.
        evaluation: a batch of it, after the two steps; None where the run evaluates nothing.
        units: parameters of the whole model, in the units that several ranks would gather.
        rank: that this is the rehearsal of; None of a process that trains alone.
    """

    log: TensorLog
    backward_starts: tuple[int, ...]
    second_step: int
    vocabulary: int
    first_step: int
    rows: int
    length: int
    micro_batches: int
    operators: Sequence[OperatorWork]
    parameters: int
    trained_parameters: int
    paged_bytes: int
    forward_ends: tuple[int, ...] = ()
    evaluation: RehearsedEvaluation | None = None
    units: tuple[Unit, ...] = ()
    rank: Rank | None = None
