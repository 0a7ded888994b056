"""One recipe after another rehearsed for one accelerator, and what each comes to there."""

from __future__ import annotations

import copy
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.planning.arguments import run_arguments
from hf_efficient.planning.demand import demand_of
from hf_efficient.planning.gpu import planned_gpu
from hf_efficient.planning.isolation import process_kept
from hf_efficient.planning.memory import planned_memory
from hf_efficient.planning.ranks.rank import rehearse_rank
from hf_efficient.planning.ranks.sharding import sharding_of
from hf_efficient.planning.run_shapes import RunRows, RunShapes, rows_as_prepared, run_shapes
from hf_efficient.planning.shaped import rehearse_shapes
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import PlannedGpu, PlannedMemory, PlannedOutcome

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MOST_TRIALS = 14
"""Rehearsals for one list of advice, so that it takes no more than some times as long as the plan itself."""


@dataclass(frozen=True)
class Trial:
    """A rehearsal in figures.

    Attributes:
        outcome: on the accelerator.
        memory: on any.
        padding_share: of the positions of a mean step; 0 where the data are not known.
    """

    outcome: PlannedOutcome
    memory: PlannedMemory
    padding_share: float = 0.0


class Trials:
    """Rehearses recipes of one model, and of one data set, for one accelerator.

    Args:
        config: of the model.
        device: see below.
        documents: tokens of each example; None where the data are not known.

    Attributes:
        device: the accelerator.
        done: how many there were.
    """

    def __init__(self, config: PretrainedConfig, device: Accelerator, documents: RunRows | None = None) -> None:
        self.device = device
        self.done = 0
        self._config = config
        self._documents = documents

    @property
    def left(self) -> int:
        """How many a list of advice may still make."""
        return MOST_TRIALS - self.done

    def run(self, recipe: Recipe, length: int | None = None) -> Trial:
        """Rehearse a recipe.

        Args:
            recipe: the recipe.
            length: tokens of every row; default: as the documents have it, or the most that the recipe allows.

        Raises:
            HfEfficientError: what the recipe's own run would refuse.
        """
        self.done += 1
        config = copy.deepcopy(self._config)  # transformers writes attention and dtype into the one that it builds from
        shapes = None if length is not None else self._shapes(recipe)
        rehearsal = rehearse_rank(recipe, config, length) if shapes is None else rehearse_shapes(recipe, config, shapes)
        gpu = planned_gpu(demand_of(recipe, rehearsal, shapes, sharding_of(recipe).ranks), self.device)
        padding = 0.0 if shapes is None else shapes.train.padding_share
        return Trial(outcome_of(gpu), planned_memory(rehearsal), padding)

    def _shapes(self, recipe: Recipe) -> RunShapes | None:
        if self._documents is None:
            return None
        with process_kept(), tempfile.TemporaryDirectory() as directory:
            args = run_arguments(recipe, directory)
            rows = rows_as_prepared(self._documents, args)
            return run_shapes(args, rows, sharding_of(recipe).ranks, at_end=recipe.evaluate.at_end)


def outcome_of(gpu: PlannedGpu) -> PlannedOutcome:
    """The part of a plan for an accelerator that advice compares."""
    return PlannedOutcome(gpu.needed_bytes, gpu.fits, gpu.step_seconds, gpu.tokens_per_second)
