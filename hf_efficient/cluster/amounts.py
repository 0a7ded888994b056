"""Times and GPUs as people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Gpus", "clock_time", "gpus_of", "seconds_of"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WITH_UNIT = re.compile(r"(\d+)\s*([smhd])")
_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,3}):(\d{2}):(\d{2})")
_GPUS = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9_.-]*):)?(\d+)")


@dataclass(frozen=True)
class Gpus:
    """GPUs of a machine.

    Attributes:
        kind: as the cluster names it; None: whichever it has.
        count: how many.
    """

    kind: str | None
    count: int


def seconds_of(text: str) -> int | None:
    """``90m``, ``12h``, ``2d``, ``12:00:00``, ``1-12:00:00`` in seconds; None for anything else, and for no time."""
    if unit := _WITH_UNIT.fullmatch(text.strip()):
        return int(unit[1]) * _UNITS[unit[2]] or None
    if clock := _CLOCK.fullmatch(text.strip()):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds or None
    return None


def clock_time(seconds: int) -> str:
    """``1-12:00:00``, as Slurm writes it."""
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{text}" if days else text


def gpus_of(said: int | str) -> Gpus | None:
    """``8``, ``H100:8``; None for anything else, and for none."""
    read = _GPUS.fullmatch(str(said).strip())
    return Gpus(read[1], int(read[2])) if read and int(read[2]) else None
