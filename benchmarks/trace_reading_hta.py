"""HolisticTraceAnalysis' figures of one trace, as JSON; run by ``trace_reading.py`` with an interpreter that has it."""

import importlib.metadata
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

_START = time.perf_counter()


def main(path: str) -> None:
    """Read, analyse, print."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from hta.trace_analysis import TraceAnalysis

    imported = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/")
    read = time.perf_counter()
    (time_told,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    (overlap,) = analysis.get_comm_comp_overlap(visualize=False).to_dict("records")
    types = analysis.get_gpu_kernel_breakdown(visualize=False)[0].to_dict("records")
    idle = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)[0].to_dict("records")
    done = time.perf_counter()
    print(
        json.dumps(
            {
                "version": importlib.metadata.version("HolisticTraceAnalysis"),
                "pandas_version": importlib.metadata.version("pandas"),
                "seconds": _seconds(time_told),
                "communication_seconds": _communication(types),
                "overlap_share": _number(overlap["comp_comm_overlap_pctg"], 100),
                "idle_by_stream": _idle(idle),
                "import_seconds": imported - _START,
                "read_seconds": read - imported,
                "analyse_seconds": done - read,
                "peak_bytes": _peak_bytes(),
            }
        )
    )


def _seconds(told: dict[str, Any]) -> dict[str, float]:
    window, idle = told["kernel_time(us)"] / 1e6, told["idle_time(us)"] / 1e6
    return {"window": window, "busy": window - idle, "idle": idle, "compute": told["compute_time(us)"] / 1e6}


def _communication(types: list[dict[str, Any]]) -> float:
    """Alone, and at the same time as something else."""
    return float(sum(one["sum"] for one in types if "COMMUNICATION" in one["kernel_type"])) / 1e6


def _idle(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(str(int(row["stream"])), {})[row["idle_category"]] = row["idle_time"] / 1e6
    return found


def _number(value: float, scale: float) -> float | None:
    return None if value != value else value / scale


def _peak_bytes() -> int:
    """The largest resident size of this process; getrusage would tell its parent's where that was larger."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1])
