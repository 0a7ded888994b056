"""The CPU's own meters: RAPL, as Linux shows it under ``/sys/class/powercap``."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from hf_efficient.measure.meters.meter import EnergyMeter, MeterError

__all__ = ["POWERCAP", "rapl_meters"]

POWERCAP = Path("/sys/class/powercap")
_NOTE = "the whole socket, whoever uses it"


def rapl_meters(root: Path = POWERCAP) -> list[EnergyMeter]:
    """A counter for each socket, and one for its memory where that is metered apart.

    Zones are folders ``intel-rapl:0`` (also on AMD) and ``intel-rapl:0:1`` inside a socket; each has a ``name``, a
    counter ``energy_uj`` in microjoules and ``max_energy_range_uj``, from where it starts again. ``core`` and
    ``uncore`` are parts of ``package``; ``psys`` holds it and more; neither is added to it. (Linux, Documentation/
    power/powercap/powercap.rst.) Since Linux 5.10 the counters belong to root.

    Raises:
        MeterError: there are none, or they may not be read.
    """
    zones = sorted(root.glob("intel-rapl:*"))
    found = []
    try:
        for zone in zones:
            name = _text(zone / "name")
            if name.startswith("package-"):
                found.append(_meter(zone, f"CPU package {name.removeprefix('package-')}"))
            elif name == "dram":
                socket = _text(root / zone.name.rpartition(":")[0] / "name").removeprefix("package-")
                found.append(_meter(zone, f"memory of CPU package {socket}"))
    except PermissionError as error:
        raise MeterError(f"RAPL: {error.filename} may be read by root only") from error
    except (OSError, ValueError) as error:
        raise MeterError(f"RAPL: {error}") from error
    if not found:
        raise MeterError(f"this machine shows no RAPL counters under {root}")
    return found


def _meter(zone: Path, name: str) -> EnergyMeter:
    counter = zone / "energy_uj"
    _joules(counter)
    return EnergyMeter(
        name,
        f"{platform.node()} {zone.name}",
        "rapl",
        "joules",
        functools.partial(_joules, counter),
        range_joules=_joules(zone / "max_energy_range_uj"),
        note=_NOTE,
    )


def _joules(file: Path) -> float:
    return int(_text(file)) / 1e6


def _text(file: Path) -> str:
    return file.read_text(encoding="ascii").strip()
