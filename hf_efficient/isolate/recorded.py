"""A variant that trains with our recording on: its step times, and its forward and backward by phase."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from transformers import Trainer

from hf_efficient.diagnosis.step_columns import read_columns
from hf_efficient.isolate.stamps import StepStamps
from hf_efficient.isolate.training import built_trainer
from hf_efficient.isolate.variant import Setup
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["recorded_training"]


def recorded_training(setup: Setup) -> tuple[VariantMeasurement, Trainer]:
    """Train the variant's recipe, time its steps, and read what it recorded.

    Returns:
        With its trainer.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    stamps = StepStamps(trainer, setup.warm_up)
    trainer.train()
    found = stamps.measurement()
    path = Path(setup.recipe.output_dir) / "efficiency" / "steps.jsonl"
    if not setup.recipe.efficiency.record_steps or trainer.args.process_index or not path.exists():
        return found, trainer
    columns = read_columns(path)
    counts = np.maximum(columns.micro_batches, 1)[setup.warm_up :]
    seconds = columns.compute_seconds[setup.warm_up :] / counts
    tokens = columns.processed[setup.warm_up :] / counts
    known = np.isfinite(seconds) & np.isfinite(tokens)
    found = dataclasses.replace(
        found, micro_batch_seconds=seconds[known].tolist(), micro_batch_tokens=tokens[known].tolist()
    )
    return found, trainer
