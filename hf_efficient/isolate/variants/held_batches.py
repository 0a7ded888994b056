"""Batches made before the first step: what model and optimizer take without waiting for data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_efficient.isolate.changes import QUIET_STEPS
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.records.isolation import VariantMeasurement

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["HELD_BATCHES"]


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.held_batches import hold_batches
    from hf_efficient.isolate.training import timed_training

    def hold(trainer: Trainer) -> None:
        hold_batches(trainer, setup.warm_up + setup.steps, setup.share)

    return timed_training(setup, hold)


HELD_BATCHES = Variant("held_batches", "batches made beforehand", _measure, lambda recipe: QUIET_STEPS)
