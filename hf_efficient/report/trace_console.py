"""The breakdown of a trace on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.report.trace_rows import communication_line, launch_lines
from hf_efficient.report.trace_tables import (
    copy_table,
    device_time_table,
    family_table,
    gap_table,
    kernel_table,
    operator_table,
    step_table,
    sync_table,
)
from hf_efficient.units import count, short_seconds, size

__all__ = ["trace_renderables"]


def trace_renderables(trace: TraceBreakdown) -> list[RenderableType]:
    """What to print, in order: what was read, each device, where the host waited, the steps, the host's operators."""
    parts: list[RenderableType] = [Text(_title(trace), "bold"), *(Text(one, "yellow") for one in trace.remarks)]
    for device in trace.devices:
        parts += _spaced(_device(device))
    if trace.syncs:
        parts += _spaced(iter([sync_table(trace.syncs)]))
    if trace.steps:
        parts += _spaced(iter([step_table(trace.steps)]))
    if trace.host is not None and not trace.devices:
        parts += _spaced(iter([family_table(trace.host.families, "operators by family", "calls")]))
    if trace.host is not None:
        parts += _spaced(iter([operator_table(trace.host)]))
    return parts


def _title(trace: TraceBreakdown) -> str:
    file = trace.file
    told = [f"{count(file.events)} events in {size(file.read_bytes)}", f"{short_seconds(trace.window_seconds)} long"]
    if file.rank is not None and (file.world_size or 1) > 1:
        told.append(f"rank {file.rank} of {file.world_size}")
    if trace.steps:
        told.append(f"steps {trace.steps[0].number} to {trace.steps[-1].number}")
    return f"{file.path}: {', '.join(told)}"


def _device(device: DeviceBreakdown) -> Iterator[RenderableType]:
    name = f"device {device.device}" + (f", {device.name}" if device.name else "")
    yield device_time_table(device, name)
    yield family_table(device.families, "kernels, copies and memsets by family", "count")
    yield kernel_table(device.kernels)
    lines = [*launch_lines(device.launches), *communication_line(device.communication)]
    if lines:
        yield Text("\n".join(lines))
    if device.copies:
        yield copy_table(device.copies)
    if device.gaps:
        yield gap_table(device.gaps)


def _spaced(parts: Iterator[RenderableType]) -> list[RenderableType]:
    """With an empty line before each."""
    return [Padding(part, (1, 0, 0, 0)) for part in parts]
