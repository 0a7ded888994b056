"""The recipe as it is, short; its evaluations and saves, which a few steps may not reach, are timed by ``pauses``."""

from __future__ import annotations

import dataclasses

from hf_efficient.isolate.variant import Setup, Variant
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["AS_IS"]


def _measure(setup: Setup) -> VariantMeasurement:
    from hf_efficient.isolate.recorded import recorded_training
    from hf_efficient.isolate.schedule import recipe_schedule

    found, trainer = recorded_training(setup)
    return dataclasses.replace(found, schedule=recipe_schedule(setup.original, trainer))


AS_IS = Variant("as_is", "as it is, without evaluations and saves", _measure)
