"""Evaluations and saves of a training, timed as the Trainer calls them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from hf_efficient.isolate.stamps import synchronise
from hf_efficient.isolate.training import built_trainer
from hf_efficient.isolate.variant import Setup
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["timed_pauses"]


def timed_pauses(setup: Setup) -> VariantMeasurement:
    """Train the variant's few steps, with an evaluation and a save after each.

    Raises:
        HfEfficientError: as for a run.
    """
    trainer = built_trainer(setup)
    found = VariantMeasurement()
    device = trainer.args.device
    trainer.evaluate = _timed(trainer.evaluate, found.evaluation_seconds, device)  # type: ignore[method-assign]
    trainer._save_checkpoint = _timed(trainer._save_checkpoint, found.save_seconds, device)  # type: ignore[method-assign]
    trainer.train()
    return found


def _timed(method: Callable[..., Any], into: list[float], device: torch.device) -> Callable[..., Any]:
    @functools.wraps(method)
    def timed(*args: Any, **kwargs: Any) -> Any:
        synchronise(device)
        began = time.perf_counter()
        result = method(*args, **kwargs)
        synchronise(device)
        into.append(time.perf_counter() - began)
        return result

    return timed
