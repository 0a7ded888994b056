"""Sums of what step records may or may not know: sequences and FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SequenceSums", "WorkSums"]


@dataclass
class SequenceSums:
    """The sequences of many steps.

    Attributes:
        known: whether every step told them.
        rows, documents: sums.
        shortest, longest: tokens of a document; None of nothing.
        length_buckets: sums by upper bound.
    """

    known: bool = True
    rows: int = 0
    documents: int = 0
    shortest: int | None = None
    longest: int | None = None
    length_buckets: dict[str, int] = field(default_factory=dict)

    def add(self, part: Mapping[str, Any] | None) -> None:
        """Take in what one record holds; None: it does not know.

        Raises:
            KeyError, TypeError, AttributeError: it is of another kind.
        """
        if part is None:
            self.known = False
            return
        self.rows += part["rows"]
        self.documents += part["documents"]
        shortest, longest = part["shortest"], part["longest"]
        self.shortest = shortest if self.shortest is None or shortest < self.shortest else self.shortest
        self.longest = longest if self.longest is None or longest > self.longest else self.longest
        buckets = self.length_buckets
        for bound, count in part["length_buckets"].items():
            buckets[bound] = buckets.get(bound, 0) + count


@dataclass
class WorkSums:
    """The FLOPs of many steps; None where a step does not know them."""

    model_flops: int | None = 0
    hardware_flops: int | None = 0

    def add(self, part: Mapping[str, Any] | None) -> None:
        """Take in what one record holds; None: it does not know.

        Raises:
            KeyError, TypeError: it is of another kind.
        """
        model, hardware = (None, None) if part is None else (part["model_flops"], part["hardware_flops"])
        self.model_flops = None if model is None or self.model_flops is None else self.model_flops + model
        self.hardware_flops = (
            None if hardware is None or self.hardware_flops is None else self.hardware_flops + hardware
        )
