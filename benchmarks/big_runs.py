"""How long does the account of a big run take, and how much memory?

    python benchmarks/big_runs.py [--steps N] [--ranks N] [--runs N] [--directory DIR] [--json FILE]

Writes the records of a run, by default a million steps on eight ranks (8 GB, left where --directory says), and reads
them in a fresh process: the account, the series behind the plots, the account on the terminal, and the page. Memory is
the resident memory of that process and all that it starts, added up fifty times a second, at its highest.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from big_run_records import write_run
from results import load_average, write_result
from rich.console import Console

console = Console()

_READ = """
import json, sys, time
from pathlib import Path
start = time.perf_counter()
from rich.console import Console
from hf_efficient.run_dir.json_file import strict_json
from hf_efficient.reporting.console import account_renderables
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.run_data import read_run
imported = time.perf_counter()
run = read_run(Path(sys.argv[1]))
account, series = run.account, run.series
read = time.perf_counter()
with open("/dev/null", "w") as nowhere:
    Console(file=nowhere).print(*account_renderables(account))
shown = time.perf_counter()
page = len(run_page(run).encode())
drawn = time.perf_counter()
print(json.dumps({
    "imports_seconds": imported - start,
    "account_and_series_seconds": read - imported,
    "console_seconds": shown - read,
    "page_seconds": drawn - shown,
    "page_bytes": page,
    "steps": account.steps.count,
    "buckets": len(series.steps),
    "run_json_bytes": len(strict_json(account)),
}))
"""


def main() -> None:
    """Write, read, and tell."""
    options = _options()
    started, load = datetime.datetime.now(datetime.timezone.utc), load_average()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        if not (directory / "steps.jsonl").exists():
            console.print(f"Writing {options.steps:,} steps of {options.ranks} ranks to {directory} ...")
            write_run(directory, options.steps, options.ranks)
        size = sum(path.stat().st_size for path in directory.glob("*.jsonl"))
        runs = [_read(directory) for _ in range(options.runs)]
    for run in runs:
        console.print(
            f"{run['steps']:,} steps, {size / 1e9:.2f} GB: {run['wall_seconds']:.1f} s "
            f"(CPU {run['cpu_seconds']:.1f} s), {run['peak_memory_bytes'] / 1e6:.0f} MB at most, "
            f"run.json {run['run_json_bytes'] / 1e3:.1f} kB, "
            f"report.html {run['page_bytes'] / 1e6:.2f} MB"
        )
    if options.json is not None:
        figures = {"load_average_at_start": load, "ranks": options.ranks, "records_bytes": size, "runs": runs}
        write_result(options.json, "big_runs", started, figures, packages=["msgspec"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps of every rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3, help="how often they are read")
    parser.add_argument("--directory", type=Path, help="where the records are, or are written")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    return parser.parse_args()


def _read(directory: Path) -> dict[str, Any]:
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", _READ, str(directory)], stdout=subprocess.PIPE)
    watched = psutil.Process(process.pid)
    peak, cpu = 0, {0: 0.0}
    while process.poll() is None:
        resident = 0
        for one in (watched, *_children(watched)):
            try:
                resident += one.memory_info().rss
                cpu[one.pid] = sum(one.cpu_times()[:2])
            except psutil.Error:  # it ended meanwhile
                continue
        peak = max(peak, resident)
        time.sleep(0.02)
    wall = time.perf_counter() - start
    assert process.stdout is not None
    told: dict[str, Any] = json.load(process.stdout)
    return {**told, "wall_seconds": wall, "cpu_seconds": sum(cpu.values()), "peak_memory_bytes": peak}


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


if __name__ == "__main__":
    main()
