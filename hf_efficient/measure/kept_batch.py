"""A micro-batch that is looked at later: what is small and lies in host memory need not be counted at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["MOST_KEPT_POSITIONS", "KeptBatch"]

MOST_KEPT_POSITIONS = 8192
"""Of a batch that is kept: a step with a larger one takes so long that its counting does not show, and memory would."""


class KeptBatch:
    """The tensors of a batch, and whether somebody has written into them since.

    Attributes:
        batch: by name.
    """

    __slots__ = ("_versions", "batch")

    def __init__(self, batch: dict[str, Any], versions: list[int]) -> None:
        self.batch, self._versions = batch, versions

    @classmethod
    def of(cls, batch: Mapping[str, Any]) -> KeptBatch | None:
        """Keep it; None where it is large, or a tensor lies on a device or does not tell when it is written into."""
        ids = batch.get("input_ids")
        if not isinstance(ids, torch.Tensor) or ids.numel() > MOST_KEPT_POSITIONS:
            return None
        kept = dict(batch)  # from which a trainer takes the labels out
        versions = []
        try:
            for value in kept.values():
                if isinstance(value, torch.Tensor):
                    if not value.is_cpu or value.numel() > MOST_KEPT_POSITIONS:
                        return None
                    versions.append(value._version)
        except RuntimeError:  # a tensor made in inference mode; asking each of them takes longer than this
            return None
        return cls(kept, versions)

    def unchanged(self) -> bool:
        """Whether its tensors hold what they held, by torch's own count of in-place operations."""
        tensors = (value for value in self.batch.values() if isinstance(value, torch.Tensor))
        return all(tensor._version == version for tensor, version in zip(tensors, self._versions, strict=True))
