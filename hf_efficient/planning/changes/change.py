"""What a change is, and what it sees of the recipe and the accelerator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.facts.accelerators import Accelerator
from hf_efficient.recipe.rules.distributed import ACCUMULATION, names_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.records.plan import PlannedMemory

_MATTERS = 0.01
_MUCH_PADDING = 0.05


@dataclass(frozen=True)
class Situation:
    """A recipe that was rehearsed, on an accelerator.

    Attributes:
        settings: the recipe with the defaults of ``SFTConfig``.
        memory: of the rehearsal.
        weights: data type of the base's weights: ``float32``, ``bfloat16``, ``float16``.
        device: the accelerator.
        fits: whether it fits there.
        padding_share: of the positions of a mean step; 0 where the data are not known.
    """

    settings: Settings
    memory: PlannedMemory
    weights: str
    device: Accelerator
    fits: bool
    padding_share: float = 0.0

    @property
    def is_padded(self) -> bool:
        """Whether a twentieth of the positions or more is padding."""
        return self.padding_share >= _MUCH_PADDING

    @property
    def is_replicated(self) -> bool:
        """Whether several ranks train, and each holds the whole model."""
        distributed = self.settings.recipe.distributed
        return distributed.processes not in ("auto", 1) and distributed.strategy in ("auto", "ddp")

    def accumulating(self, micro_batches: int) -> dict[str, int]:
        """The override that makes a step of so many micro-batches; none where that follows from the global batch."""
        recipe = self.settings.recipe
        follows = recipe.distributed.global_batch_size is not None and not names_accumulation(recipe)
        return {} if follows else {ACCUMULATION: micro_batches}

    def matters(self, *categories: str) -> bool:
        """Whether these categories hold, at their worst, a hundredth of the memory at the peak."""
        held = sum(self.memory.category_peak_bytes.get(name, 0) for name in categories)
        return held >= _MATTERS * self.memory.peak_allocated_bytes


@dataclass(frozen=True)
class Change:
    """Other values for a recipe.

    Attributes:
        overrides: by dotted key.
        gives: what they are good for.
        costs: what they cost.
        keeps_training: whether the same weights learn from the same tokens; rounding may differ.
        repeats: whether it can be proposed again for the changed recipe, for about half of what it saved.
    """

    overrides: Mapping[str, Any]
    gives: str
    costs: str
    keeps_training: bool = True
    repeats: bool = False


Proposer = Callable[[Situation], Change | None]


def activation_checkpointing(settings: Settings) -> tuple[str, bool]:
    """The field of ``train:`` that decides about it, and whether it is on.

    ``gradient_checkpointing`` is transformers' older name; it counts where the newer one is not given.
    """
    newer = settings.train("activation_checkpointing")
    if newer is not None:
        return "activation_checkpointing", bool(newer)
    return "gradient_checkpointing", bool(settings.train("gradient_checkpointing"))
