"""One recipe after another rehearsed for one accelerator, and what each comes to there."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_efficient.hardware.accelerators import Accelerator
from hf_efficient.planning.demand import demand_of
from hf_efficient.planning.gpu import planned_gpu
from hf_efficient.planning.memory import planned_memory
from hf_efficient.planning.rehearsal import rehearse
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import PlannedGpu, PlannedMemory, PlannedOutcome

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["MOST_TRIALS", "Trial", "Trials", "outcome_of"]

MOST_TRIALS = 12
"""Rehearsals for one list of advice, so that it takes no more than some times as long as the plan itself."""


@dataclass(frozen=True)
class Trial:
    """A rehearsal in figures.

    Attributes:
        outcome: on the accelerator.
        memory: on any.
    """

    outcome: PlannedOutcome
    memory: PlannedMemory


class Trials:
    """Rehearses recipes of one model for one accelerator.

    Attributes:
        device: the accelerator.
        done: how many there were.
    """

    def __init__(self, config: PretrainedConfig, device: Accelerator) -> None:
        self.device = device
        self.done = 0
        self._config = config

    @property
    def left(self) -> int:
        """How many a list of advice may still make."""
        return MOST_TRIALS - self.done

    def run(self, recipe: Recipe, length: int | None = None) -> Trial:
        """Rehearse a recipe.

        Args:
            recipe: the recipe.
            length: tokens of every row; default: the most that the recipe allows.

        Raises:
            HfEfficientError: what the recipe's own run would refuse.
        """
        self.done += 1
        config = copy.deepcopy(self._config)  # transformers writes attention and dtype into the one that it builds from
        rehearsal = rehearse(recipe, config, length)
        gpu = planned_gpu(demand_of(recipe, rehearsal), self.device)
        return Trial(outcome_of(gpu), planned_memory(rehearsal))


def outcome_of(gpu: PlannedGpu) -> PlannedOutcome:
    """The part of a plan for an accelerator that advice compares."""
    return PlannedOutcome(gpu.needed_bytes, gpu.fits, gpu.step_seconds, gpu.tokens_per_second)
