"""How often a run evaluates and saves, as transformers' ``DefaultFlowCallback`` decides (5.23)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hf_efficient.planning.shapes import BatchShapes

if TYPE_CHECKING:
    from trl import SFTConfig


def evaluations_of(args: SFTConfig, train: BatchShapes, *, at_end: bool) -> int:
    """How many evaluations a run makes; one at the end is not repeated.

    Args:
        args: of the run.
        train: its steps.
        at_end: whether the run evaluates once more after the last step.
    """
    reached = _evaluated_after(args, train)
    last = at_end and (train.steps not in reached or args.load_best_model_at_end)
    return len(reached) + bool(args.eval_on_start) + bool(last)


def saves_of(args: SFTConfig, train: BatchShapes) -> int:
    """How many checkpoints a run writes; of ``save_strategy: best`` as many as it can be: every evaluation the best.

    Hand-worked, 10 steps: ``save_steps`` 4 saves after 4, 8 and the last step; 0.25 every ceil(2.5) = 3, and the last.

    Args:
        args: of the run.
        train: its steps.
    """
    strategy = _named(args.save_strategy)
    if strategy == "steps":
        return len(_every(args.save_steps, train.steps))
    if strategy == "epoch":
        return len(_epoch_ends(train))
    return len(_evaluated_after(args, train)) if strategy == "best" else 0


def evaluates_by_epoch(args: SFTConfig) -> bool:
    """Whether how often the run evaluates depends on the length of an epoch.

    Args:
        args: of the run.
    """
    return _named(args.eval_strategy) == "epoch"


def saves_by_epoch(args: SFTConfig) -> bool:
    """Whether how often the run saves depends on the length of an epoch.

    Args:
        args: of the run.
    """
    strategy = _named(args.save_strategy)
    return strategy == "epoch" or (strategy == "best" and evaluates_by_epoch(args))


def _evaluated_after(args: SFTConfig, train: BatchShapes) -> list[int]:
    """Steps of the training; an evaluation before the first one is not saved."""
    strategy = _named(args.eval_strategy)
    if strategy == "steps":
        reached = _every(args.eval_steps or args.logging_steps, train.steps)
        return [step for step in reached if step >= args.eval_delay]
    if strategy == "epoch":
        return [step for step in _epoch_ends(train) if step / train.epoch_steps >= args.eval_delay]
    return []


def _every(wanted: float, steps: int) -> list[int]:
    """So many steps, or such a share of all of them; and the last one."""
    every = math.ceil(steps * wanted) if wanted < 1 else int(wanted)
    reached = list(range(every, steps + 1, every)) if every else []
    return reached if steps in reached else [*reached, steps]


def _epoch_ends(train: BatchShapes) -> list[int]:
    ends = math.ceil(train.steps / train.epoch_steps)
    return [min(end * train.epoch_steps, train.steps) for end in range(1, ends + 1)]


def _named(strategy: Any) -> str:
    return str(getattr(strategy, "value", strategy))
