"""This package's figures of one trace, as JSON; run by ``trace_reading.py`` in a process of its own."""

import time

_START = time.perf_counter()

import io  # noqa: E402  the clock starts before the imports
import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

from hf_efficient.records.trace import BusyBreakdown, Communication  # noqa: E402
from hf_efficient.reporting.profile_tables import trace_renderables  # noqa: E402
from hf_efficient.trace.breakdown import (  # noqa: E402
    SHORT_GAP_SECONDS,
    DeviceWork,
    break_down,
    communication,
    device_busy,
    device_work,
)
from hf_efficient.trace.host import step_marks  # noqa: E402
from hf_efficient.trace.read import EventTable, Ints, Kind, read_trace  # noqa: E402


def main(path: Path) -> None:
    """Read, break down and show it; then once more of the events that HolisticTraceAnalysis keeps."""
    imported = time.perf_counter()
    trace = read_trace(path)
    read = time.perf_counter()
    found = break_down(trace)
    Console(file=io.StringIO()).print(*trace_renderables(found))
    done = time.perf_counter()
    peak = _peak_bytes()
    device = found.devices[0]
    rows = trace.events.by_device()[device.device]
    work_of_all = device_work(trace.events, rows)
    work = device_work(trace.events, _kept_by_hta(trace.events, rows))
    print(
        json.dumps(
            {
                "all_events": _figures(device.busy, device.communication, work_of_all),
                "same_events": _figures(device_busy(work), communication(work), work),
                "json_bytes": trace.file.read_bytes,
                "events": trace.file.events,
                "import_seconds": imported - _START,
                "read_seconds": read - imported,
                "analyse_seconds": done - read,
                "peak_bytes": peak,
            }
        )
    )


def _kept_by_hta(events: EventTable, rows: Ints) -> Ints:
    """Where a trace has several steps, HolisticTraceAnalysis drops what the host submitted in the last one or after."""
    steps = step_marks(events)
    if len(np.unique(steps.number)) < 2:
        return rows
    calls = events.rows(Kind.CALL)
    early = events.correlation[calls[events.start[calls] < steps.start.max()]]
    return rows[np.isin(events.correlation[rows], early)]


def _idle_by_stream(work: DeviceWork) -> dict[str, dict[str, float]]:
    """Each stream alone, as HolisticTraceAnalysis 0.5.0 splits its idle time (``get_idle_time_breakdown``): *host wait*
    where the next event was submitted in the gap, however short, *kernel wait* of the rest below 30 microseconds."""
    streams, found = work.events.stream[work.rows], {}
    for stream in np.unique(streams).tolist():
        own = work.only(streams == stream)
        lengths = np.maximum(own.start[1:] - own.end[:-1], 0.0)
        late, short = own.submitted[1:] > own.end[:-1], lengths < SHORT_GAP_SECONDS * 1e6
        parts = {"host_wait": late, "kernel_wait": ~late & short, "other": ~late & ~short}
        found[str(stream)] = {name: float(lengths[chosen].sum()) / 1e6 for name, chosen in parts.items()}
    return found


def _figures(busy: BusyBreakdown, communication: Communication | None, work: DeviceWork) -> dict[str, Any]:
    return {
        "seconds": {
            "window": busy.window_seconds,
            "busy": busy.busy_seconds,
            "idle": busy.idle_seconds,
            "compute": busy.compute_seconds,
        },
        "communication_seconds": communication.seconds if communication else 0.0,
        "overlap_share": communication.overlap_share if communication else None,
        "idle_by_stream": _idle_by_stream(work),
        "idle_by_cause": {
            "host_bound": busy.idle.host_bound_seconds,
            "launch_bound": busy.idle.launch_bound_seconds,
            "other": busy.idle.other_seconds,
        },
    }


def _peak_bytes() -> int:
    """The largest resident size of this process; getrusage would tell its parent's where that was larger."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(Path(sys.argv[1]))
