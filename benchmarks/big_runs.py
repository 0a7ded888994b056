"""How long does the account of a big run take, and how much memory?

    python benchmarks/big_runs.py [--steps N] [--ranks N] [--runs N] [--directory DIR] [--json FILE]

Writes the records of a run, by default a million steps on eight ranks (8 GB, left where --directory says), and reads
them in a fresh process: the account, the series behind the plots, the account on the terminal, and the page. Memory is
the resident memory of that process and all that it starts, added up fifty times a second, at its highest.
"""

import argparse
import datetime
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from shared import load_average, write_result

_PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer")
_WATTS = (700.0, 250.0, 250.0)
_RANGES = {"CPU package 0": 262_143.0, "CPU package 1": 262_143.0}
_ON_DEVICE = ("forward", "backward", "optimizer", "exposed_wait")


def write_run(directory: Path, steps: int, ranks: int, seed: int = 0) -> int:
    """Write ``spans.jsonl``, and ``steps.jsonl`` and ``system.jsonl`` of every rank.

    Args:
        directory: made if it is not there.
        steps: optimizer steps of every rank.
        ranks: how many there are.
        seed: of the figures.

    Returns:
        Bytes written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    wall = 0.0
    for rank in range(ranks):
        of_rank = ".jsonl" if rank == 0 else f".rank{rank}.jsonl"
        wall = max(wall, _write_steps(directory / f"steps{of_rank}", steps, rank, seed))
        _write_system(directory / f"system{of_rank}", rank, wall)
    _write_spans(directory / "spans.jsonl", wall)
    return sum(path.stat().st_size for path in directory.iterdir())


def _write_steps(path: Path, steps: int, rank: int, seed: int) -> float:
    draw = random.Random(f"{seed} {rank}").random
    at = 0.25
    with path.open("w", encoding="utf-8", buffering=1 << 20) as file:
        for step in range(1, steps + 1):
            line, wall = _step(step, rank, at, draw(), draw(), draw())
            file.write(line)
            at = round(at + wall, 9)
    return at


def _step(step: int, rank: int, at: float, one: float, two: float, three: float) -> tuple[str, float]:
    slow = 1.0 + (25.0 * three if step % 997 == 0 else 0.0)
    seconds = dict(zip(_PHASES, _nanoseconds(0.002 * one, 0.0007, 0.08 * slow, 0.17 * slow, 0.013 * two), strict=True))
    if step % 10 == 0:
        seconds["logging"] = round(0.0011 + 0.0005 * three, 9)
    if step % 1000 == 0:
        seconds |= {"evaluation": round(2.0 + one, 9), "checkpointing": round(0.7 + two, 9)}
    rest = round(0.0003 + 0.0001 * two, 9)
    wall = round(sum(seconds.values()) + rest, 9)
    tokens = 16384 - int(3000 * two)
    buckets = {"256": int(9 * one), "512": 3 + int(9 * two), "1024": 4 + int(3 * three), "2048": int(5 * one)}
    flops = 98_000_000_000 * tokens
    allocated = 31_000_000_000 + int(900_000_000 * two)
    phase_peaks = {name: allocated - 40_000_000 * index for index, name in enumerate(_PHASES[2:])}
    on_device = dict(zip(_ON_DEVICE, _nanoseconds(0.079 * slow, 0.169 * slow, 0.012 * two, 0.003 * one), strict=True))
    logged: dict[str, float | None] = {"loss": None}
    if step % 10 == 0:
        logged = {"loss": 1.5 + 2.0 / (1 + step / 9000) + 0.2 * one, "learning_rate": 2e-4 / step**0.5}
        logged["grad_norm"] = 0.4 + two + (40.0 if step % 7770 == 0 else 0.0)
    record = {
        "schema_version": 1,
        "segment": 0,
        "rank": rank,
        "step": step,
        "epoch": step / 31250,
        "wall_seconds": wall,
        "started_at_seconds": at,
        "phase_seconds": seconds,
        "unattributed_seconds": rest,
        "micro_batches": 4,
        "tokens": {"processed": 16384, "non_padding": tokens, "target": tokens // 3},
        **logged,
        "sequences": {
            "rows": 16,
            "documents": sum(buckets.values()),
            "shortest": 20 + int(100 * one),
            "longest": 1100 + int(900 * two),
            "length_buckets": buckets,
        },
        "work": {"model_flops": flops, "hardware_flops": flops * 4 // 3},
        "memory": {
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": 34_000_000_000,
            "phase_peak_allocated_bytes": phase_peaks,
            "allocation_retries": step // 400_000,
        },
        "device_seconds": on_device,
    }
    return json.dumps(record) + "\n", wall


def _nanoseconds(*values: float) -> list[float]:
    return [round(value, 9) for value in values]


def _write_spans(path: Path, training_seconds: float) -> None:
    begun = {"kind": "process", "schema_version": 1, "rank": 0, "pid": 7, "way": "recipe"}
    lines: list[dict[str, Any]] = [
        {**begun, "process_start_from": "kernel", "began_at_seconds": 0.0},
        {"kind": "span", "started_at_seconds": 0.0, "wall_seconds": 20.0, "phase_seconds": {"imports": 20.0}},
        {"kind": "train", "segment": 0, "at_seconds": 20.0},
        {
            "kind": "end",
            "ended": "done",
            "error": None,
            "at_seconds": 21.0 + training_seconds,
            "memory": {"peak_rss_bytes": 9_000_000_000},
        },
    ]
    path.write_text("".join(json.dumps({**line, "process": 0}) + "\n" for line in lines), encoding="utf-8")


def _write_system(path: Path, rank: int, training_seconds: float) -> None:
    """A GPU of the rank's own, and the two sockets that every rank of the machine reads."""
    draw = random.Random(f"system {rank}").random
    names = (f"GPU {rank}", "CPU package 0", "CPU package 1")
    counters = dict.fromkeys(names, 1_000.0)
    with path.open("w", encoding="utf-8") as file:
        for second in range(int(20 + training_seconds)):
            drawn = {name: round(most * (0.8 + 0.2 * draw()), 3) for name, most in zip(names, _WATTS, strict=True)}
            counters = {name: counters[name] + drawn[name] for name in names}
            sample = {
                "schema_version": 1,
                "process": 0,
                "at_seconds": second + round(draw() / 100, 4),
                "rss_bytes": 8_000_000_000 + int(900_000_000 * draw()),
                "host_available_bytes": 900_000_000_000,
                "device_allocated_bytes": 31_000_000_000,
                "device_reserved_bytes": 34_000_000_000,
                "joules": {name: round(value % _RANGES.get(name, 1e15), 4) for name, value in counters.items()},
                "watts": drawn,
            }
            if second == 0:
                sample["meters"] = {name: _meter(name) for name in names}
            file.write(json.dumps(sample) + "\n")


def _meter(name: str) -> dict[str, Any]:
    described = {"id": name, "machine": "node0", "source": "rapl" if name in _RANGES else "nvml", "unit": "joules"}
    return {**described, "range_joules": _RANGES.get(name), "note": "energy counter"}


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
