"""All events of a trace as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hf_efficient.trace.kinds import DEVICE_KINDS, Kind

__all__ = ["EventTable", "Floats", "Ints"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EventTable:
    """One row per event, in the order of their start; where two start together, the longer one comes first.

    Attributes:
        start, end: microseconds since the first event.
        name: index into ``names``.
        kind: ``Kind``.
        thread: index into ``threads``.
        correlation: links a call of the runtime with what it submitted; -1: none.
        device, stream: -1 for events of the host.
        bytes: of a copy or memset; -1: not told.
        stack: index into ``names`` of a recorded call stack; -1: none.
        names: every name once.
        threads: process and thread, as the trace has them.
    """

    start: Floats
    end: Floats
    name: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    thread: npt.NDArray[np.int32]
    correlation: Ints
    device: npt.NDArray[np.int32]
    stream: Ints
    bytes: Ints
    stack: npt.NDArray[np.int32]
    names: list[str]
    threads: list[tuple[object, object]]

    def __len__(self) -> int:
        return len(self.start)

    def rows(self, *kinds: Kind) -> Ints:
        """The rows of these kinds, ascending."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def device_rows(self, device: int) -> Ints:
        """The rows of what a device ran, in the order of their start."""
        return np.flatnonzero(np.isin(self.kind, DEVICE_KINDS) & (self.device == device))

    def devices(self) -> list[int]:
        """The devices that ran something, ascending."""
        found: list[int] = np.unique(self.device[np.isin(self.kind, DEVICE_KINDS)]).tolist()
        return found
