"""What a GPU does and what holds it back, through NVIDIA's management library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_efficient.measure.meters.cuda import CudaDevice
from hf_efficient.measure.meters.nvml import nvml_handle

__all__ = ["THROTTLES", "GpuProbe"]

THROTTLES = {
    0x04: "power_cap",
    0x08: "hardware_slowdown",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Reasons why a GPU runs below the clocks that were asked of it (nvml.h, ``nvmlClocksEventReasons``, CUDA 12.4).

Not among them: that it is idle, that somebody has set its clocks, that it waits for another one in its sync group.
"""


class GpuProbe:
    """Figures of one GPU; those that it does not know are absent.

        utilization_percent          share of the last sixth of a second to second in which a kernel ran
        memory_utilization_percent   the same of its memory being read or written
        memory_used_bytes            by all processes
        temperature_celsius, sm_clock_mhz, memory_clock_mhz

    Attributes:
        name: ``GPU 0``, by NVML's count.
        throttled: why it was held back at the last reading (see ``THROTTLES``).
        limits: ``memory_total_bytes``, ``sm_clock_max_mhz``, ``power_limit_watts``, where it tells them.
    """

    def __init__(self, device: CudaDevice) -> None:
        """Look for it.

        Raises:
            MeterError: there is no NVML here, or it does not know the device.
        """
        self._nvml, self._handle, index = nvml_handle(device)
        self.name = f"load of GPU {index}"
        self.index = index
        self.throttled: list[str] = []
        nvml, handle = self._nvml, self._handle
        self._questions: dict[str, Callable[[], float]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
            "memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),  # NVML_TEMPERATURE_GPU
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 1),  # NVML_CLOCK_SM
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, 2),  # NVML_CLOCK_MEM
        }
        self.limits = self._limits()

    def read(self, at: float) -> dict[str, float]:
        """See above."""
        found = {name: self._ask(question) for name, question in self._questions.items()}
        reasons = self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        self.throttled = [name for bit, name in THROTTLES.items() if int(reasons or 0) & bit]
        return {name: value for name, value in found.items() if value is not None}

    def _limits(self) -> dict[str, float]:
        nvml, handle = self._nvml, self._handle
        found = {
            "memory_total_bytes": self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
            "sm_clock_max_mhz": self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, 1)),
            "power_limit_watts": self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _ask(self, question: Callable[[], Any]) -> float | None:
        try:
            return float(question())
        except (self._nvml.NVMLError, AttributeError):  # it does not know that, or the library is older
            return None
