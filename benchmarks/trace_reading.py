"""Does the reading of traces agree with HolisticTraceAnalysis, and how much faster is it, in how much memory?

    python benchmarks/trace_reading.py FOLDER --hta PYTHON [--large NAME] [--runs N] [--json FILE]

``FOLDER`` holds traces of real GPUs that torch's profiler wrote; ``PYTHON`` is an interpreter of an environment of its
own with HolisticTraceAnalysis.

Each trace is read by both, in a process each. What differs in definition, read in its source on 2026-11-20:

- Where a trace has several ``ProfilerStep`` marks, it drops what the host submitted in the last of them or later, and
  what it cannot link to a call on the host. The agreement is told on the same events ("same events"), and what this
  package tells of the whole trace stands beside ("all events").
- It rounds times to whole microseconds, which takes a good part of short kernels away: 12% of the device's busy time
  on the MI250's trace. ``HTA_DISABLE_NS_ROUNDING=1`` turns that off; the agreement is told with it, and the rounded
  figures stand beside.
- Events of the category ``cuda_sync`` that name a stream are work of the device to it, and those without "Sync" in
  their names ("Stream Wait Event") even computation. A stream that waits runs nothing: here they count for nothing.
  (AlexNet's trace has some; without them both agree on it to the microsecond.)
- Its *host wait*, *kernel wait* and *other* are of each stream alone; ``hf_efficient/trace/breakdown.py`` says why a
  device is split another way here. The figures by stream are compared.

The large trace repeats the events of one of them (``--large``), later each time, to 200 MB of JSON. The time is that of
a whole process: imports, reading, and all figures; of this package also everything that it alone tells, and its print.
The runs alternate; the ratio is the median of the pairs. Memory is the largest resident size of the process.
"""

import argparse
import datetime
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from shared import load_average, write_result

_TIME = re.compile(rb'("ts":\s*)(\d+)')
_LINK = re.compile(rb'("(?:correlation|External id|id)":\s*)(\d+)')
_STEP = re.compile(rb"(ProfilerStep#)(\d+)")


def write_repeated(source: Path, target: Path, least_bytes: int) -> int:
    """Repeat the events of a trace until the file is large enough.

    Times, correlations and the numbers of steps go on from one repetition to the next.

    Args:
        source: a trace of torch's profiler, gzipped or plain.
        target: where the large one goes; gzipped where its name ends so.
        least_bytes: of JSON.

    Returns:
        How often the events were written.
    """
    data = source.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    start = re.search(rb'"traceEvents"\s*:\s*\[', text)
    assert start is not None
    end = text.rindex(b"}", 0, text.rindex(b"]")) + 1
    head, events, tail = text[: start.end()], text[start.end() : end], text[end:]
    if b'"traceName"' in tail:
        tail = b"]}"
    span = _span(events)
    links = 1 + max(int(found[2]) for found in _LINK.finditer(events))
    steps = 1 + max((int(found[2]) for found in _STEP.finditer(events)), default=0)
    with gzip.open(target, "wb", compresslevel=5) if target.suffix == ".gz" else target.open("wb") as file:
        file.write(head)
        written, count = len(head), 0
        while written < least_bytes:
            again = _later(events, count * span, count * links, count * steps)
            written += file.write((b"," if count else b"") + again)
            count += 1
        file.write(tail)
    return count


def _span(events: bytes) -> int:
    """Microseconds from the first to the last start, and a thousandth more."""
    times = [int(found[2]) for found in _TIME.finditer(events)]
    span = max(times) - min(times)
    return span + span // 1000 + 1


def _later(events: bytes, span: int, links: int, steps: int) -> bytes:
    for pattern, by in ((_TIME, span), (_LINK, links), (_STEP, steps)):
        events = pattern.sub(partial(_shifted, by=by), events)
    return events


def _shifted(found: re.Match[bytes], by: int) -> bytes:
    return found[1] + str(int(found[2]) + by).encode()


console = Console(width=120, highlight=False)
HERE = Path(__file__).parent
LARGE_BYTES = 200_000_000
AGREEMENT = 0.01


def main() -> None:
    """Compare, time, print and write."""
    options = _options()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    traces = sorted(path for path in options.folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    compared = [_compared(path, options.hta) for path in traces]
    console.print(_agreement_table(compared))
    source = options.folder / options.large
    with tempfile.TemporaryDirectory() as folder:
        timed = [_timed(source, Path(folder) / f"large{end}", options) for end in (".json", ".json.gz")]
    console.print(_time_table(timed))
    if options.json is not None:
        figures = {"load_average_at_start": load, "agreement_limit": AGREEMENT, "traces": compared, "large": timed}
        write_result(options.json, "trace_reading", started, figures, packages=["msgspec", "numpy"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with traces")
    parser.add_argument("--hta", required=True, metavar="PYTHON", help="an interpreter with HolisticTraceAnalysis")
    parser.add_argument("--large", default="trace_diff_control.json.gz", metavar="NAME", help="the trace to repeat")
    parser.add_argument("--runs", type=int, default=5, help="pairs of runs on the large trace")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return parser.parse_args()


def _compared(path: Path, hta: str) -> dict[str, Any]:
    own = _own(path)
    exact, rounded = _hta(hta, path, rounding=False), _hta(hta, path, rounding=True)
    return {
        "trace": path.name,
        "differences": _differences(own["same_events"], exact),
        "own_same_events": own["same_events"],
        "hta": {key: exact[key] for key in own["same_events"] if key in exact},
        "own_all_events": own["all_events"],
        "hta_rounded": {key: rounded[key] for key in own["same_events"] if key in rounded},
        "versions": {"HolisticTraceAnalysis": exact["version"], "pandas": exact["pandas_version"]},
    }


def _differences(own: dict[str, Any], hta: dict[str, Any]) -> dict[str, float | None]:
    """Relative to HolisticTraceAnalysis' figure; of shares, and of idle time by stream, relative to the whole."""
    found: dict[str, float | None] = {
        name: _relative(own["seconds"][name], value) for name, value in hta["seconds"].items()
    }
    found["communication"] = _relative(own["communication_seconds"], hta["communication_seconds"])
    told = hta["overlap_share"] is not None and own["overlap_share"] is not None
    found["overlap_share"] = abs(own["overlap_share"] - hta["overlap_share"]) if told else None
    window = hta["seconds"]["window"]
    found["idle_by_stream"] = max(
        abs(own["idle_by_stream"].get(stream, {}).get(cause, 0.0) - value) / window
        for stream, causes in hta["idle_by_stream"].items()
        for cause, value in causes.items()
    )
    return found


def _relative(own: float, hta: float) -> float:
    return abs(own - hta) / hta if hta else abs(own)


def _timed(source: Path, large: Path, options: argparse.Namespace) -> dict[str, Any]:
    count = write_repeated(source, large, LARGE_BYTES)
    pairs = []
    for number in range(options.runs):
        turns = ["own", "hta"] if number % 2 == 0 else ["hta", "own"]
        read = {"own": lambda: _own(large), "hta": lambda: _hta(options.hta, large, rounding=True)}
        pairs.append({turn: read[turn]() for turn in turns})
    kept = ("wall_seconds", "import_seconds", "read_seconds", "analyse_seconds", "peak_bytes")
    return {
        "trace": f"{source.name}, {count} times{', gzipped' if large.suffix == '.gz' else ''}",
        "json_bytes": pairs[0]["own"]["json_bytes"],
        "file_bytes": large.stat().st_size,
        "events": pairs[0]["own"]["events"],
        "times_faster": statistics.median(pair["hta"]["wall_seconds"] / pair["own"]["wall_seconds"] for pair in pairs),
        "times_less_memory": statistics.median(pair["hta"]["peak_bytes"] / pair["own"]["peak_bytes"] for pair in pairs),
        "own": [{key: pair["own"][key] for key in kept} for pair in pairs],
        "hta": [{key: pair["hta"][key] for key in kept} for pair in pairs],
    }


def _own(path: Path) -> dict[str, Any]:
    return _told([sys.executable, str(HERE / "trace_reading_own.py"), str(path)], {})


def _hta(python: str, path: Path, *, rounding: bool) -> dict[str, Any]:
    extra = {"HTA_DISABLE_NS_ROUNDING": "0" if rounding else "1", "PYTHONPATH": ""}
    return _told([python, str(HERE / "trace_reading_hta.py"), str(path)], extra)


def _told(command: list[str], extra: dict[str, str]) -> dict[str, Any]:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **extra})
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return {**told, "wall_seconds": time.perf_counter() - start}


def _agreement_table(compared: list[dict[str, Any]]) -> Table:
    table = Table("figures that differ by", *(one["trace"].split(".")[0] for one in compared), box=None)
    for name in compared[0]["differences"]:
        values = [one["differences"][name] for one in compared]
        table.add_row(name, *("none there" if value is None else f"{100 * value:.3f}%" for value in values))
    return table


def _time_table(timed: list[dict[str, Any]]) -> Table:
    table = Table("large trace", "JSON", "ours", "HTA", "times faster", "ours", "HTA", "times less", box=None)
    for one in timed:
        seconds = [statistics.median(run["wall_seconds"] for run in one[who]) for who in ("own", "hta")]
        sizes = [statistics.median(run["peak_bytes"] for run in one[who]) for who in ("own", "hta")]
        table.add_row(
            one["trace"],
            f"{one['json_bytes'] / 1e6:.0f} MB",
            *(f"{value:.2f} s" for value in seconds),
            f"{one['times_faster']:.1f}",
            *(f"{value / 1e6:.0f} MB" for value in sizes),
            f"{one['times_less_memory']:.1f}",
        )
    return table


if __name__ == "__main__":
    main()
