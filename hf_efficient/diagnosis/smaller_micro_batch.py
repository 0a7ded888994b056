"""Smaller micro-batches, with a global batch that stays what it is."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case

__all__ = ["smaller_micro_batch"]


def smaller_micro_batch(case: Case) -> dict[str, Any] | None:
    """Half of the rows, or the most below that which divide a step's rows; None where there is but one.

    Hand-worked: 5 rows accumulated twice are 10: of 2 or fewer rows 2 divide them, 5 times.
    """
    rows = int(case.argument("per_device_train_batch_size") or 1)
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    fewer = next((few for few in range(rows // 2, 0, -1) if rows * accumulated % few == 0), None)
    if fewer is None:
        return None
    return {
        "train.per_device_train_batch_size": fewer,
        "train.gradient_accumulation_steps": rows * accumulated // fewer,
    }
