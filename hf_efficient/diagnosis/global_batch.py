"""Remedies for a run whose recipe names its global batch."""

from __future__ import annotations

import dataclasses
from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.records.findings import Finding, Remedy

__all__ = ["with_global_batch"]

_ROWS, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
_GLOBAL_BATCH = "distributed.global_batch_size"


def with_global_batch(finding: Finding, case: Case) -> Finding:
    """The finding with remedies that say the global batch as well, where they make it another one.

    Hand-worked: 64 sequences of 2 rows, accumulated 4 times on 8 processes; a remedy of 8 times makes it 128.

    Args:
        finding: of a rule, which knows rows and accumulation.
        case: the run.
    """
    named = (case.recipe or {}).get(_GLOBAL_BATCH)
    if not isinstance(named, int):
        return finding
    return dataclasses.replace(finding, remedies=[_with_batch(remedy, case, named) for remedy in finding.remedies])


def _with_batch(remedy: Remedy, case: Case, named: int) -> Remedy:
    before = after = 1
    for field in (_ROWS, _ACCUMULATION):
        held = int(case.argument(field) or 1)
        before, after = before * held, after * int(remedy.overrides.get(f"train.{field}", held))
    if after == before:
        return remedy
    overrides: dict[str, Any] = {**remedy.overrides, _GLOBAL_BATCH: named * after // before}
    return dataclasses.replace(remedy, overrides=overrides)
