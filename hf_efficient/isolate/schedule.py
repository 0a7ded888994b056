"""When the whole run of a recipe would log, evaluate and save."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import Trainer

from hf_efficient.hardware.devices import usable_cpus
from hf_efficient.launch.arguments import training_arguments
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import IsolationSchedule

__all__ = ["recipe_schedule"]


def recipe_schedule(recipe: Recipe, trainer: Trainer) -> IsolationSchedule:
    """Of the recipe as the user wrote it.

    Args:
        recipe: the user's.
        trainer: of a variant with its data; its training is over.

    Raises:
        HfEfficientError: as for a run.
    """
    batches = len(trainer.get_train_dataloader())
    args = training_arguments(recipe)  # makes accelerate forget what the trainer's own arguments set
    epoch = max(1, math.ceil(batches / args.gradient_accumulation_steps))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    evaluate_steps = args.eval_steps or args.logging_steps
    rows = 0 if trainer.eval_dataset is None else _rows(trainer.eval_dataset)
    return IsolationSchedule(
        steps=steps,
        log_every=_every(args.logging_strategy, args.logging_steps, steps, epoch),
        evaluate_every=_every(args.eval_strategy, evaluate_steps, steps, epoch) if rows else None,
        save_every=_every(args.save_strategy, args.save_steps, steps, epoch),
        micro_batch_rows=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        processes=args.world_size,
        workers=args.dataloader_num_workers,
        cores=usable_cpus() / args.world_size,
        threads=torch.get_num_threads(),
        device=trainer.args.device.type,
        best_at_end=bool(args.load_best_model_at_end),
        evaluation_rows=rows,
    )


def _rows(dataset: Any) -> int:
    """Of one data set, or of several by name."""
    return sum(len(one) for one in dataset.values()) if isinstance(dataset, dict) else len(dataset)


def _every(strategy: Any, wanted: float, steps: int, epoch: int) -> int | None:
    """So many steps, or such a share of all of them; None where no distance says when."""
    named = str(getattr(strategy, "value", strategy))
    if named == "steps" and wanted:
        return math.ceil(steps * wanted) if wanted < 1 else int(wanted)
    return epoch if named == "epoch" else None
