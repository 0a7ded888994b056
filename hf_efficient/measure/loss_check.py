"""How many losses were no finite number, without waiting for a device before somebody does anyway."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["LossCheck"]

_MOST_KEPT = 64
"""Scalars that are held before they are counted on their device."""


class LossCheck:
    """Of the micro-batches of a training. ``add`` raises nothing; ``counts`` raises what torch does."""

    def __init__(self, fault: Callable[[], None]) -> None:
        """Nothing is counted yet.

        Args:
            fault: called where one could not be added, while the exception is handled.
        """
        self._fault = fault
        self._kept: list[torch.Tensor] = []
        self._not_finite: torch.Tensor | None = None
        self._seen = 0

    def add(self, loss: torch.Tensor) -> None:
        """One micro-batch's; nothing waits."""
        try:
            kept = self._kept
            kept.append(loss.detach() if loss.requires_grad else loss)
            if len(kept) >= _MOST_KEPT:
                self._fold()
        except Exception:  # noqa: BLE001  it is told of there
            self._fault()

    def counts(self) -> tuple[int, int]:
        """Losses seen, and those that were not finite; waits for the device."""
        self._fold()
        return self._seen, 0 if self._not_finite is None else int(self._not_finite)

    def _fold(self) -> None:
        if not self._kept:
            return
        self._seen += len(self._kept)
        found = torch.stack(self._kept).isfinite().logical_not().sum()
        self._kept.clear()
        self._not_finite = found if self._not_finite is None else self._not_finite + found
