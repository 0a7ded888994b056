"""The batches of a run made before its first step: a loader that has nothing left to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from transformers import Trainer

from hf_efficient.measure.loader.taken import batch_tensors

__all__ = ["HeldBatches", "hold_batches", "step_batches"]

MOST_BYTES = 512 << 20
"""Of batches that are held; what comes later is one of them again."""


def step_batches(trainer: Trainer, loader: Any, steps: int, share: int = 1) -> Iterator[list[Any]]:
    """The micro-batches of each optimizer step, epoch after epoch, as the Trainer takes them.

    Args:
        trainer: whose arguments count.
        loader: its train dataloader.
        steps: so many.
        share: of so many processes the first one's, which takes every ``share``-th batch.
    """
    return islice(_all_steps(loader, trainer.args.gradient_accumulation_steps, share), steps)


def _all_steps(loader: Any, accumulation: int, share: int) -> Iterator[list[Any]]:
    epoch = 0
    while True:
        _begin_epoch(loader, epoch)
        batches = islice(loader, 0, None, share)
        while held := list(islice(batches, accumulation)):
            yield held
        epoch += 1


def _begin_epoch(loader: Any, epoch: int) -> None:
    """As the Trainer does: accelerate's loader does not reach through its own batch sampler."""
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(epoch)
    inner = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
    if inner is not None and hasattr(inner, "set_epoch"):
        inner.set_epoch(epoch)


class HeldBatches:
    """Stands for a train dataloader: its batches are those of the first epochs, in the same order.

    Attributes:
        dataset: of the loader.
        repeats: whether batches had to be given twice, since all took too much memory.
    """

    def __init__(self, dataset: Any, per_epoch: int, batches: list[Any], repeats: bool) -> None:
        """Nothing is loaded.

        Args:
            dataset: of the loader.
            per_epoch: micro-batches of an epoch.
            batches: in the order of the epochs.
            repeats: begin again at the end of them.
        """
        self.dataset = dataset
        self.repeats = repeats
        self._per_epoch, self._batches = per_epoch, batches
        self._epoch = 0

    def __len__(self) -> int:
        """Micro-batches of an epoch."""
        return self._per_epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iterator is of this epoch."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """The batches of the epoch, as far as they are held; a trainer takes tensors out of them, so each is a copy."""
        first = self._epoch * self._per_epoch
        for at in range(first, first + self._per_epoch):
            if at >= len(self._batches) and not self.repeats:
                return
            held = self._batches[at % len(self._batches)]
            yield dict(held) if isinstance(held, Mapping) else held


def hold_batches(trainer: Trainer, steps: int, share: int = 1) -> HeldBatches:
    """Load what the trainer will train on, leave it on its device, and give it to the trainer in place of its loader.

    Args:
        trainer: that has not begun.
        steps: that it will train.
        share: see ``step_batches``: one process in place of several trains on the batches of the first of these.
    """
    loader = trainer.get_train_dataloader()
    batches: list[Any] = []
    held_bytes, repeats = 0, False
    for step in step_batches(trainer, loader, steps, share):
        batches += [_on(trainer.args.device, batch) for batch in step]
        held_bytes += sum(tensor.nbytes for batch in step for tensor in batch_tensors(batch))
        if held_bytes > MOST_BYTES:
            repeats = True
            break
    if hasattr(loader, "end"):
        loader.end()  # else accelerate takes a loader that was left half-read for the one that is trained on
    held = HeldBatches(loader.dataset, math.ceil(len(loader) / share), batches, repeats)
    stands_in: Any = held
    trainer.get_train_dataloader = lambda: stands_in  # type: ignore[method-assign]
    return held


def _on(device: torch.device, batch: Any) -> Any:
    if not isinstance(batch, Mapping):
        return batch
    return {name: one.to(device) if isinstance(one, torch.Tensor) else one for name, one in batch.items()}
