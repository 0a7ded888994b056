"""What is seen of the machine about once per second: memory, load of the machine and its GPUs, energy meters."""

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from hf_efficient.estimate.cost import believable, joules_between
from hf_efficient.recording.meters import EnergyMeter, MeterError, cuda_devices, device_memory, gpu_meters, host_meters
from hf_efficient.recording.probes import CoresProbe, DisksProbe, GpuProbe, NetworkProbe
from hf_efficient.records.steps import SCHEMA_VERSION

logger = logging.getLogger(__name__)

_LOOK_FOR_DEVICES_EVERY = 10


class SystemSampler:
    """Samples memory, load and energy about once a second, on one thread, for ``system.jsonl``. A meter that fails is
    logged once and asked again in the next round. The training thread sets ``device``."""

    def __init__(self, process: int, now_seconds: Callable[[], float], device: int | None = None) -> None:
        self.device = device
        self.joules = 0.0
        self.broken = False
        self._process, self._now_seconds = process, now_seconds
        self._self = psutil.Process()
        self._meters: dict[str, EnergyMeter] = {}
        self._looked_for: set[int] = set()
        self._last: dict[str, tuple[float, float]] = {}
        self._faults: dict[str, str] = {}
        self._warned = False
        self._news: dict[str, Any] = {}
        self._samples = 0
        self._host = (CoresProbe(), DisksProbe(), NetworkProbe())
        self._gpus: list[GpuProbe] = []

    @property
    def energy_joules(self) -> float | None:
        """Energy since the first sample, of the meters that this process reads; None where none has answered yet."""
        return self.joules if self._last else None

    def sample(self) -> dict[str, Any] | None:
        """What is known now; None once sampling has ended. Raises nothing."""
        if self.broken:
            return None
        try:
            found = self._sample()
        except BaseException as error:  # noqa: BLE001  the thread would end here, and nobody else would tell
            self.give_up(error)
        return None if self.broken else found  # it may have been left behind meanwhile

    def give_up(self, error: BaseException) -> None:
        """Nothing is sampled from here on: a probe does not answer, or something else is wrong."""
        self.broken = True
        self._warn(f"Memory and energy of this process are no longer sampled ({type(error).__name__}: {error}).")

    def _warn(self, what: str) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "%s Training continues; the account names what is missing.", what)

    def _sample(self) -> dict[str, Any]:
        at, version = self._now_seconds(), SCHEMA_VERSION
        sample: dict[str, Any] = {"schema_version": version, "process": self._process, "at_seconds": round(at, 4)}
        self._probe("memory of the host", lambda: sample.update(rss_bytes=self._self.memory_info().rss))
        self._probe("memory of the host", lambda: sample.update(host_available_bytes=psutil.virtual_memory().available))
        self._probe("memory of the device", lambda: sample.update(device_memory(self.device)))
        if self._samples == 0:
            self._probe("CPU", lambda: self._add(host_meters()))
        if self._samples % _LOOK_FOR_DEVICES_EVERY == 0:
            self._probe("GPU", self._look_for_devices)
        for name, meter in self._meters.items():
            self._read(name, meter, at, sample)
        sample["host"] = {}
        for probe in self._host:
            self._probe(probe.name, functools.partial(lambda one: sample["host"].update(one.read(at)), probe))
        for gpu in self._gpus:
            self._probe(gpu.name, functools.partial(self._read_gpu, gpu, at, sample))
        self._samples += 1
        news, self._news = self._news, {}
        return {**sample, **news}

    def _look_for_devices(self) -> None:
        new = [device for device in cuda_devices(self.device) if device.index not in self._looked_for]
        self._looked_for.update(device.index for device in new)
        for device in new:
            if device.cuda:
                with contextlib.suppress(MeterError):  # its energy meter says so
                    self._gpus.append(GpuProbe(device))
        meters, faults = gpu_meters(new)
        self._add(meters)
        for name, why in faults.items():
            self._fault_of(name, why)

    def _add(self, meters: Sequence[EnergyMeter]) -> None:
        for meter in meters:
            self._meters[meter.name] = meter
            self._news.setdefault("meters", {})[meter.name] = meter.described()

    def _probe(self, name: str, probe: Callable[[], None]) -> None:
        try:
            probe()
        except Exception as error:  # noqa: BLE001  a probe may raise anything
            self._fault_of(name, f"{type(error).__name__}: {error}")

    def _read(self, name: str, meter: EnergyMeter, at: float, sample: dict[str, Any]) -> None:
        def read() -> None:
            value = believable(meter.read(), meter.unit, meter.range_joules)
            sample.setdefault(meter.unit, {})[name] = round(value, 4)
            before, self._last[name] = self._last.get(name), (at, value)
            if before is None or before[0] >= at:
                return
            joules = float(joules_between(before, (at, value), meter.unit, meter.range_joules))
            if joules == joules:  # NaN is not
                self.joules += joules
                sample.setdefault("watts", {}).setdefault(name, round(joules / (at - before[0]), 3))

        self._probe(name, read)

    def _read_gpu(self, gpu: GpuProbe, at: float, sample: dict[str, Any]) -> None:
        sample.setdefault("gpus", {})[str(gpu.index)] = gpu.read(at)
        if gpu.throttled:
            sample.setdefault("throttled", {})[str(gpu.index)] = gpu.throttled

    def _fault_of(self, name: str, why: str) -> None:
        if name not in self._faults:
            self._faults[name] = why
            self._news.setdefault("faults", {})[name] = why
            self._warn(f"{name} cannot be measured ({why}).")
