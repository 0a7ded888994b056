"""The best meter for each part of this machine, for one of the processes on it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hf_efficient.hardware.devices import usable_cpus
from hf_efficient.measure.meters.cuda import CudaDevice
from hf_efficient.measure.meters.estimates import cpu_estimate, gpu_estimate
from hf_efficient.measure.meters.meter import EnergyMeter, MeterError
from hf_efficient.measure.meters.nvml import nvml_meter
from hf_efficient.measure.meters.rapl import POWERCAP, rapl_meters

__all__ = ["Found", "gpu_meters", "host_meters", "is_first_on_machine"]

# Where launchers tell it; the same names as accelerate's.
_LOCAL_RANKS = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK")


@dataclass
class Found:
    """What there is to read.

    Attributes:
        meters: each another part of the machine.
        faults: name of a part to what is wrong with its meter.
    """

    meters: list[EnergyMeter] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)


def is_first_on_machine() -> bool:
    """Whether this process is the one that reads what all processes of the machine share."""
    return next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name)), "0") == "0"


def host_meters(root: Path = POWERCAP) -> Found:
    """RAPL once per machine; where it cannot be read, an estimate to which every process adds its part."""
    try:
        meters = rapl_meters(root)
    except MeterError as error:
        return Found([cpu_estimate(usable_cpus() if is_first_on_machine() else 0.0, str(error))])
    return Found(meters if is_first_on_machine() else [])


def gpu_meters(devices: list[CudaDevice]) -> Found:
    """NVML for each; else an estimate. That nothing measures a GPU is a fault, as CUDA cannot be there without NVML."""
    found = Found()
    for device in devices:
        try:
            found.meters.append(_of(device))
        except Exception as error:  # noqa: BLE001  NVML may answer anything
            why = str(error) if isinstance(error, MeterError) else f"{type(error).__name__}: {error}"
            found.faults[f"GPU {device.index}"] = why
            try:
                found.meters.append(gpu_estimate(device, why))
            except MeterError as also:
                found.faults[f"GPU {device.index}"] = str(also)
    return found


def _of(device: CudaDevice) -> EnergyMeter:
    if not device.cuda:
        raise MeterError("it is driven by ROCm, whose meters are not read here")
    return nvml_meter(device)
