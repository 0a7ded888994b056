"""The forward alone under ``torch.no_grad``: what it takes where nothing is kept for a backward."""

from __future__ import annotations

from hf_efficient.isolate.changes import ALONE
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["FORWARD_NO_GRAD"]


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.forward_only import forward_training

    return forward_training(setup, with_graph=False)


FORWARD_NO_GRAD = Variant(
    "forward_no_grad", "forward only, torch.no_grad", _measure, lambda recipe: ALONE, one_process=True
)
