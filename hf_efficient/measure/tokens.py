"""Tokens of a micro-batch, counted three ways, without waiting for a device.

A batch in host memory is counted at once. A batch that is already on a device (accelerate's data loader moves
it there) is counted by two small reductions queued on that device; their results are copied to the host in
the background and read when an event says that they arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from hf_efficient.records import TokenCounts

__all__ = ["TokenTally"]

logger = logging.getLogger(__name__)

_IGNORED = -100


class TokenTally:
    """Sums the tokens of the micro-batches of one optimizer step.

    ``processed`` is the size of ``input_ids``. ``non_padding`` is the sum of an ``attention_mask`` of that
    shape; a padding-free batch (``position_ids`` and no mask) has no padding. ``loss_bearing`` counts
    ``labels != -100`` (``shift_labels`` where the collator made them), or the ``completion_mask`` of
    preference data. A count that one micro-batch does not tell is None for the whole step.
    """

    def __init__(self) -> None:
        self._counts: tuple[list[int | torch.Tensor | None], ...] = ([], [], [])
        self._events: list[Any] = []

    def add(self, batch: Any) -> None:
        """Count one micro-batch: a mapping of names to tensors of shape (rows, positions)."""
        counts = _count(batch) if isinstance(batch, Mapping) else (None, None, None)
        device: torch.device | None = None
        for seen, count in zip(self._counts, counts, strict=True):
            if isinstance(count, torch.Tensor):
                if count.device.type == "cpu":
                    count = int(count)
                else:
                    device = count.device
                    count = count.to("cpu", non_blocking=True)
            seen.append(count)
        if device is not None:
            event = torch.get_device_module(device).Event()
            event.record()
            self._events.append(event)

    def ready(self) -> bool:
        """Whether all counts have arrived on the host; asks the device, never waits for it."""
        while self._events and self._events[0].query():
            self._events.pop(0)
        return not self._events

    def counts(self) -> TokenCounts:
        """The sums; waits for the device where ``ready()`` is not yet true."""
        for event in self._events:
            event.synchronize()
        self._events.clear()
        return TokenCounts(*(_total(seen) for seen in self._counts))


def _total(counts: list[int | torch.Tensor | None]) -> int | None:
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _count(batch: Mapping[str, Any]) -> tuple[int | None, int | torch.Tensor | None, torch.Tensor | None]:
    ids = _tensor(batch, "input_ids")
    processed = None if ids is None else ids.numel()

    mask = _tensor(batch, "attention_mask")
    non_padding: int | torch.Tensor | None = None
    if ids is not None and mask is not None and mask.shape == ids.shape:
        non_padding = mask.ne(0).sum()
    elif mask is None and "position_ids" in batch:
        non_padding = processed

    labels = _tensor(batch, "shift_labels")
    if labels is None:
        labels = _tensor(batch, "labels")
    completion = _tensor(batch, "completion_mask")
    loss_bearing = None
    if labels is not None and (ids is None or labels.shape == ids.shape):
        loss_bearing = labels.ne(_IGNORED).sum()
    elif labels is None and completion is not None:
        loss_bearing = completion.ne(0).sum()
    return processed, non_padding, loss_bearing


def _tensor(batch: Mapping[str, Any], name: str) -> torch.Tensor | None:
    value = batch.get(name)
    return value if isinstance(value, torch.Tensor) else None
