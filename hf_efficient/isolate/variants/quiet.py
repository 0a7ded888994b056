"""No recording of ours, no log, no evaluation, no save: steps and nothing between them."""

from __future__ import annotations

from hf_efficient.isolate.changes import QUIET_STEPS
from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["QUIET"]


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.training import timed_training

    return timed_training(setup)


QUIET = Variant("quiet", "no recording, logging, evaluation, saving", _measure, lambda recipe: QUIET_STEPS)
