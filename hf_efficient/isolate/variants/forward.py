"""The forward alone, its graph kept as for a backward, on batches made beforehand; one process."""

from __future__ import annotations

from hf_efficient.isolate.changes import ALONE
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["FORWARD"]


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.forward_only import forward_training

    return forward_training(setup, with_graph=True)


FORWARD = Variant("forward", "forward only, with its graph", _measure, lambda recipe: ALONE, one_process=True)
