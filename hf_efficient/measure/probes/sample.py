"""The load of the machine and its GPUs, put into a sample of the system."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from hf_efficient.measure.meters.cuda import CudaDevice
from hf_efficient.measure.meters.meter import MeterError
from hf_efficient.measure.probes.cores import CoresProbe
from hf_efficient.measure.probes.disks import DisksProbe
from hf_efficient.measure.probes.gpu import GpuProbe
from hf_efficient.measure.probes.network import NetworkProbe
from hf_efficient.measure.probes.probe import Probe

__all__ = ["LoadSample"]

_MOST_CORES = 64
"""Each by itself; of a larger machine their sum and the busiest one are told."""


class LoadSample:
    """Belongs to the thread that samples."""

    def __init__(self, guarded: Callable[[str, Callable[[], None]], None]) -> None:
        """Nothing is read yet.

        Args:
            guarded: calls a probe under its name, and tells of one that fails.
        """
        self._guarded = guarded
        self._cores = CoresProbe()
        self._host: tuple[Probe, ...] = (self._cores, DisksProbe(), NetworkProbe())
        self._gpus: dict[str, GpuProbe] = {}
        self._told: set[str] = set()

    def add_gpus(self, devices: Iterable[CudaDevice]) -> None:
        """GPUs that turned up; one that NVML does not know has no load, and its energy meter says so."""
        for device in devices:
            if not device.cuda:
                continue
            try:
                probe = GpuProbe(device)
            except MeterError:
                continue
            self._gpus[str(probe.index)] = probe

    def sample(self, at: float, sample: dict[str, Any]) -> None:
        """Add what is known now."""
        host: dict[str, float] = {}
        for probe in self._host:
            self._guarded(probe.name, functools.partial(_read_into, host, probe, at))
        sample["host"] = host
        if 0 < len(self._cores.core_loads) <= _MOST_CORES:
            sample["core_loads"] = self._cores.core_loads
        for number, gpu in self._gpus.items():
            self._guarded(gpu.name, functools.partial(self._gpu, number, gpu, at, sample))

    def _gpu(self, number: str, gpu: GpuProbe, at: float, sample: dict[str, Any]) -> None:
        sample.setdefault("gpus", {})[number] = gpu.read(at)
        if gpu.throttled:
            sample.setdefault("throttled", {})[number] = gpu.throttled
        if number not in self._told:
            self._told.add(number)
            sample.setdefault("gpu_limits", {})[number] = gpu.limits


def _read_into(found: dict[str, float], probe: Probe, at: float) -> None:
    found.update(probe.read(at))
