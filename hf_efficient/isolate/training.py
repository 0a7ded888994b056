"""A variant that trains, timed step by step."""

from __future__ import annotations

from collections.abc import Callable

from transformers import Trainer

from hf_efficient.isolate.stamps import StepStamps
from hf_efficient.isolate.variant import Setup
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.launch.build import build
from hf_efficient.launch.listener import SilentListener
from hf_efficient.launch.precision import settle_compute_dtype
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["built_trainer", "timed_training"]

Adjust = Callable[[Trainer], None]


def built_trainer(setup: Setup) -> Trainer:
    """The trainer of the variant's recipe, as its run would build it.

    Raises:
        HfEfficientError: data, model or adapter that do not fit.
    """
    args = training_arguments(setup.recipe)
    return build(settle_compute_dtype(setup.recipe, args.device), args, SilentListener()).trainer


def timed_training(setup: Setup, adjust: Adjust = lambda trainer: None) -> VariantMeasurement:
    """Train the variant's recipe and time its steps.

    Args:
        setup: of the variant.
        adjust: changes the trainer before it trains.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    adjust(trainer)
    stamps = StepStamps(trainer, setup.warm_up)
    trainer.train()
    return stamps.measurement()
