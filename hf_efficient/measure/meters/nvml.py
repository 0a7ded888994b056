"""A GPU's own meter, through NVIDIA's management library."""

from __future__ import annotations

from typing import Any

from hf_efficient.measure.meters.cuda import CudaDevice
from hf_efficient.measure.meters.meter import EnergyMeter, MeterError

__all__ = ["nvml_handle", "nvml_meter"]


def nvml_meter(device: CudaDevice) -> EnergyMeter:
    """The energy counter of this very device (Volta and later), or its power where it has no counter.

    The device is found by its UUID or its place on the bus, since NVML counts all devices of the machine and torch
    those that ``CUDA_VISIBLE_DEVICES`` leaves. The counter runs in millijoules from the loading of the driver; the
    power is the board's, in milliwatts, over the last second on recent devices. (NVML API reference,
    ``nvmlDeviceGetTotalEnergyConsumption`` and ``nvmlDeviceGetPowerUsage``.)

    Raises:
        MeterError: there is no NVML here, or it does not know the device.
    """
    pynvml, handle, index = nvml_handle(device)
    name = f"GPU {index}"
    if _is_sliced(pynvml, handle):
        raise MeterError("it is a MIG slice, and NVML meters the whole GPU only")
    identity = device.uuid or device.pci or name

    def joules() -> float:
        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3

    def watts() -> float:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3

    try:
        joules()
    except pynvml.NVMLError as no_counter:
        try:
            watts()
        except pynvml.NVMLError as error:
            raise MeterError(f"NVML has neither energy ({no_counter}) nor power ({error}) of it") from error
        return EnergyMeter(name, identity, "nvml", "watts", watts, note=f"power samples, {device.name}")
    return EnergyMeter(name, identity, "nvml", "joules", joules, note=f"energy counter, {device.name}")


def nvml_handle(device: CudaDevice) -> tuple[Any, Any, int]:
    """NVML itself, its handle of this device, and its number there.

    Raises:
        MeterError: there is no NVML here, or it does not know the device.
    """
    try:
        import pynvml
    except ImportError as error:
        raise MeterError("the package nvidia-ml-py is not installed (pip install nvidia-ml-py)") from error
    try:
        pynvml.nvmlInit()
        handle = _handle(pynvml, device)
        return pynvml, handle, int(pynvml.nvmlDeviceGetIndex(handle))
    except pynvml.NVMLError as error:
        raise MeterError(f"NVML: {error}") from error


def _handle(pynvml: Any, device: CudaDevice) -> Any:
    if device.uuid is not None:
        try:
            return pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        except pynvml.NVMLError:
            if device.pci is None:
                raise
    if device.pci is None:
        raise MeterError("torch tells neither its UUID nor its place on the bus")
    return pynvml.nvmlDeviceGetHandleByPciBusId(device.pci)


def _is_sliced(pynvml: Any, handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError:  # most devices cannot be
        return False
