"""What a CPU draws where nothing measures it (``facts/cpu_power.yaml``)."""

from __future__ import annotations

import functools
import statistics
from dataclasses import dataclass

from hf_efficient.hardware.tables import rows

__all__ = ["CpuPower", "cpu_power"]


@dataclass(frozen=True)
class CpuPower:
    """Power of a server for each of its virtual CPUs (hardware threads).

    Attributes:
        min_watts: idle.
        max_watts: at full load.
        source: who states it, with the day it was read.
    """

    min_watts: float
    max_watts: float
    source: str


@functools.lru_cache(maxsize=1)
def cpu_power() -> CpuPower:
    """The mean over the providers of the table, since a machine does not tell which of them it is like."""
    held = rows("cpu_power")
    providers = ", ".join(row["provider"] for row in held)
    return CpuPower(
        min_watts=statistics.fmean(row["min_watts"] for row in held),
        max_watts=statistics.fmean(row["max_watts"] for row in held),
        source=f"Cloud Carbon Footprint, mean of {providers}, read {max(str(row['date']) for row in held)}",
    )
