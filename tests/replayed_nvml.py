"""A ``pynvml`` that answers from a recording (see ``recordings/README.md``)."""

import json
import sys
import types
from pathlib import Path
from typing import Any

import pynvml as real

from hf_efficient.recording.meters import CudaDevice

RECORDINGS = Path(__file__).with_name("recordings")


class ReplayedNvml(types.ModuleType):
    """Errors are the library's own; everything else comes from the recording.

    Attributes:
        asked: the calls in their order.
    """

    def __init__(self, name: str) -> None:
        super().__init__("pynvml")
        held = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
        self.uuid, self.index = held["uuid"], held["index"]
        self.NVMLError = real.NVMLError
        self.asked: list[str] = []
        self._answers: dict[str, list[Any]] = held["answers"]

    def device(self, name: str = "NVIDIA H100 80GB HBM3", index: int = 0) -> CudaDevice:
        """The GPU as torch would describe it."""
        return CudaDevice(index, name, self.uuid)

    def nvmlInit(self) -> None:
        self._answer("nvmlInit")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._found(uuid == self.uuid)

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        assert handle == "handle"
        return self.index

    def nvmlDeviceGetMigMode(self, handle: str) -> Any:
        return self._answer("nvmlDeviceGetMigMode")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> Any:
        return self._answer("nvmlDeviceGetTotalEnergyConsumption")

    def nvmlDeviceGetPowerUsage(self, handle: str) -> Any:
        return self._answer("nvmlDeviceGetPowerUsage")

    def __getattr__(self, name: str) -> Any:
        """The other functions, of those that the recording holds; one of a device has its handle first."""
        if name.startswith("_") or name not in self._answers:
            raise AttributeError(name)

        def function(handle: str, *_: int) -> Any:
            assert handle == "handle"
            return self._answer(name)

        return function

    def _found(self, known: bool) -> str:
        if not known:
            raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
        return "handle"

    def _answer(self, function: str) -> Any:
        self.asked.append(function)
        answers = self._answers[function]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, dict) and "error" in answer:
            raise real.NVMLError(answer["error"])
        return types.SimpleNamespace(**answer) if isinstance(answer, dict) else answer


def replay(monkeypatch: Any, name: str) -> ReplayedNvml:
    """Put the recording in the library's place."""
    nvml = ReplayedNvml(name)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    return nvml
