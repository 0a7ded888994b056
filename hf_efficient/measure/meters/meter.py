"""What a meter of energy is."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["EnergyMeter", "MeterError"]


class MeterError(Exception):
    """A meter that is not there or may not be read; the message is the reason, for the account."""


@dataclass(frozen=True)
class EnergyMeter:
    """Something that tells the energy or the power of a part of this machine.

    Attributes:
        name: what it meters: ``GPU 0``, ``CPU package 0``.
        id: what it is: the same from every process that reads it, and no other's.
        source: ``nvml``, ``rapl`` or ``estimate``.
        unit: ``joules``: ``read`` gives a counter; ``watts``: the power at the moment.
        read: one reading; may raise anything.
        range_joules: where the counter starts again from 0; None where it does not.
        note: what to know of it.
    """

    name: str
    id: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    read: Callable[[], float]
    range_joules: float | None = None
    note: str = ""

    def described(self) -> dict[str, Any]:
        """What a record needs to know of it to make sense of its readings."""
        told: dict[str, Any] = {
            "id": self.id,
            "machine": platform.node(),
            "source": self.source,
            "unit": self.unit,
            "note": self.note,
        }
        return told if self.range_joules is None else {**told, "range_joules": self.range_joules}
