"""What a Chrome trace of torch's profiler tells: the breakdown that ``trace/`` makes and reports and rules read.

All times are seconds on the trace's own clock. What a trace does not tell is None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.records.trace_device import DeviceBreakdown
from hf_efficient.records.trace_host import HostBreakdown, SyncSite, TraceStep

__all__ = ["TRACE_SCHEMA_VERSION", "TraceBreakdown", "TraceFile"]

TRACE_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class TraceFile:
    """The file, and how much of it could be read.

    Attributes:
        path: as it was named.
        read_bytes: of JSON, after decompression.
        events: complete events of all kinds, those that no figure uses among them.
        unreadable_events: that are no valid JSON, or no event; they are left out.
        truncated: the file ends before its list of events does; what came before was read.
        rank, world_size: of the process, where the trace tells.
        backend: of its process group: ``nccl``.
        device_names: of the devices that the trace's process saw, by index, as the driver calls them.
        has_stacks: Python functions were recorded, or operators with their call stacks.
        has_shapes: operators were recorded with the shapes of their inputs.
    """

    path: str
    read_bytes: int
    events: int
    unreadable_events: int
    truncated: bool
    rank: int | None
    world_size: int | None
    backend: str | None
    device_names: dict[int, str]
    has_stacks: bool
    has_shapes: bool


@dataclass(frozen=True)
class TraceBreakdown:
    """Where the time of a trace went.

    Attributes:
        file: what was read.
        window_seconds: from its first event to its last.
        devices: none where the trace has no device events; then ``host`` tells where the time went.
        host: None where the trace has no operators.
        syncs: where the host waited for a device, the costliest first.
        steps: in order.
        remarks: what a reader should know before the figures, a sentence each.
        schema_version: of this record.
    """

    file: TraceFile
    window_seconds: float
    devices: tuple[DeviceBreakdown, ...]
    host: HostBreakdown | None
    syncs: tuple[SyncSite, ...]
    steps: tuple[TraceStep, ...]
    remarks: tuple[str, ...]
    schema_version: int = TRACE_SCHEMA_VERSION
