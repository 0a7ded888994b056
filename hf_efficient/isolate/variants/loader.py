"""The loader alone: the same batches as the training, and no training."""

from __future__ import annotations

from hf_efficient.isolate.changes import QUIET_STEPS
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["LOADER"]


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.loader_only import loader_alone

    return loader_alone(setup)


LOADER = Variant("loader", "the loader alone", _measure, lambda recipe: QUIET_STEPS)
