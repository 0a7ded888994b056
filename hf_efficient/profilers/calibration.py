"""What a device does of matrix products, memory traffic and launches: peaks for its account, roofs for plans of it.

Matrices are made without a random number, but hold no constant: products of zeros draw less power and run faster.
"""

import hashlib
import json
import logging
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from hf_efficient.errors import OutputError, SetupError, first_line
from hf_efficient.facts.environment import cpu_model
from hf_efficient.facts.tables import cache_dir
from hf_efficient.records.device import CALIBRATION_SCHEMA_VERSION, Calibration, MatmulRate
from hf_efficient.run_dir.json_file import read_record, write_whole

logger = logging.getLogger(__name__)

_CPU_SIZES = (128, 256, 512, 1024, 2048, 4096)
_SIZES = (256, 512, 1024, 2048, 4096, 8192)
_PRODUCT_SECONDS = 0.1
"""A size whose product would take longer is left out."""
_SIZE_SECONDS = 0.12
_FEWEST = 3
_BUSY_BELOW = 0.8
"""Products that had the machine to themselves got 0.98 and more of the CPU that they asked for, on two cores."""
_COPY_BYTES = 2**30
_CHAIN = 200
"""Operators of the chain: forward and backward stay under what a CUDA stream queues before the host has to wait."""
_CHAIN_ROUNDS = 20
_BUSY_PERCENT = 5
_ROUNDS = 5
_ROUND_SECONDS = 0.03
_MOST_REPETITIONS = 1000
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class HostStopwatch:
    """For a CPU, which has done the work when the call returns."""

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """Of the device for one call of ``work``: the mean over ``times`` of them, one after the other."""
        before = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - before) / times

    def settle(self) -> None:
        """Return when the device has done all that was queued."""


class EventStopwatch(HostStopwatch):
    """For a CUDA device: two events on its stream, so that launching is not part of the time while it is kept busy."""

    def __init__(self, event: Callable[[], Any], synchronize: Callable[[], object]) -> None:
        """``event`` makes one, as ``torch.cuda.Event(enable_timing=True)``; ``synchronize`` waits for the device."""
        self._event, self._synchronize = event, synchronize

    def seconds(self, work: Callable[[], object], times: int) -> float:
        start, end = self._event(), self._event()
        start.record()
        for _ in range(times):
            work()
        end.record()
        self._synchronize()
        return float(start.elapsed_time(end)) / 1e3 / times  # events count milliseconds

    def settle(self) -> None:
        self._synchronize()


def steady_seconds(watch: HostStopwatch, work: Callable[[], object]) -> float:
    """Seconds of one call: the median of five rounds, after a first call that is not counted."""
    work()
    watch.settle()
    once = watch.seconds(work, 1)
    times = min(_MOST_REPETITIONS, max(1, round(_ROUND_SECONDS / once))) if once > 0 else _MOST_REPETITIONS
    return statistics.median(watch.seconds(work, times) for _ in range(_ROUNDS))


@dataclass(frozen=True)
class MatmulPeak:
    """The fastest product of square matrices of ``size`` on this CPU: the peak that a training on it is held against.
    ``cpu_share``: CPU time over wall time times threads, of that product or of a larger one, whichever got less."""

    flops_per_second: float
    size: int
    threads: int
    measured_on: str
    cpu_share: float = 1.0

    @property
    def is_of_a_busy_machine(self) -> bool:
        """Whether others had a part of the CPU that it asked for, so that the true peak may be higher."""
        return self.cpu_share < _BUSY_BELOW


def cpu_matmul_peak(dtype: torch.dtype) -> MatmulPeak:
    """The peak in this dtype with torch's present number of threads, from the user's cache where it is known. Measured
    in a second at most, for each ``key``; what a busy machine gave is not kept."""
    key: dict[str, object] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dtype": str(dtype),
        # What oneDNN may compute products of float32 in; None before torch 2.9.
        "fp32_precision": getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None),
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "matmul_peaks" / f"{name}.json"
    known = _read_peak(path, key)
    if known is not None:
        return known
    peak = measure_matmul(dtype)
    if not peak.is_of_a_busy_machine:
        try:
            _keep(path, {"key": key, "peak": asdict(peak)})
        except OSError as error:
            logger.debug("%s cannot be kept: %s", path, error)
    return peak


def _read_peak(path: Path, key: dict[str, object]) -> MatmulPeak | None:
    try:
        held = json.loads(path.read_bytes())
        peak = MatmulPeak(**held["peak"])
        # Versions that did not see a busy machine wrote no share.
        is_whole = held["key"] == key and peak.flops_per_second > 0 and "cpu_share" in held["peak"]
        return peak if is_whole else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


@torch.no_grad()
def measure_matmul(dtype: torch.dtype) -> MatmulPeak:
    """The fastest of products of growing size, each of ``2 * size ** 3`` FLOPs; draws no random number."""
    fastest, best_size, least_share = 0.0, _CPU_SIZES[0], 1.0
    for size in _CPU_SIZES:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            break
        seconds, cpu_seconds = _fastest_product(size, dtype)
        rate, share = flops / seconds, 1.0
        if cpu_seconds > 0:
            share = round(min(1.0, cpu_seconds / (seconds * torch.get_num_threads())), 3)
        if rate > fastest:
            fastest, best_size, least_share = rate, size, 1.0
        least_share = min(least_share, share)
    return MatmulPeak(fastest, best_size, torch.get_num_threads(), time.strftime("%Y-%m-%d"), least_share)


def _fastest_product(size: int, dtype: torch.dtype) -> tuple[float, float]:
    """Its wall time, and the CPU time of the process meanwhile, in seconds."""
    left, right = _factors(size, dtype, torch.device("cpu"))
    result = torch.mm(left, right)  # the first one builds the kernel
    fastest, until, done = (float("inf"), 0.0), time.perf_counter() + _SIZE_SECONDS, 0
    while done < _FEWEST or time.perf_counter() < until:
        cpu_before, before = time.process_time(), time.perf_counter()
        torch.mm(left, right, out=result)
        seconds = time.perf_counter() - before
        fastest, done = min(fastest, (seconds, time.process_time() - cpu_before)), done + 1
    return fastest


def _factors(size: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    spread = torch.linspace(-1, 1, size * size, device=device, dtype=torch.float32).reshape(size, size)
    left = spread.to(dtype)
    return left, left.t().contiguous()


@dataclass(frozen=True)
class Bench:
    """A device, and how it is measured; ``products`` says whether others held it up (None: not known)."""

    device: torch.device
    name: str
    device_type: Literal["cuda", "cpu"]
    watch: HostStopwatch
    products: Callable[[], tuple[tuple[MatmulRate, ...], bool | None]]
    copy_bytes: int
    threads: int | None = None


def benches() -> Iterator[Bench]:
    seen = set()
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        name = torch.cuda.get_device_name(index)
        if name not in seen:
            seen.add(name)
            yield cuda_bench(index)
    yield cpu_bench()


def cuda_bench(index: int) -> Bench:
    device = torch.device("cuda", index)
    watch = EventStopwatch(lambda: torch.cuda.Event(enable_timing=True), lambda: torch.cuda.synchronize(device))
    sixteen = ("bf16", "fp16") if torch.cuda.is_bf16_supported(including_emulation=False) else ("fp16",)

    def products() -> tuple[tuple[MatmulRate, ...], bool | None]:
        busy = _gpu_is_busy(index)  # before this process keeps it busy itself
        return tuple(rate for dtype in (*sixteen, "fp32") for rate in product_rates(dtype, device, watch)), busy

    free, _ = torch.cuda.mem_get_info(index)
    name = torch.cuda.get_device_name(index)
    return Bench(device, name, "cuda", watch, products, copy_bytes=min(_COPY_BYTES, free // 4))


def cpu_bench() -> Bench:
    def products() -> tuple[tuple[MatmulRate, ...], bool | None]:
        peaks = {dtype: measure_matmul(_DTYPES[dtype]) for dtype in ("bf16", "fp32")}
        rates = tuple(MatmulRate(dtype, peak.size, peak.flops_per_second) for dtype, peak in peaks.items())
        return rates, any(peak.is_of_a_busy_machine for peak in peaks.values())

    return Bench(
        torch.device("cpu"),
        cpu_model() or "CPU",
        "cpu",
        HostStopwatch(),
        products,
        copy_bytes=min(_COPY_BYTES, psutil.virtual_memory().available // 8),
        threads=torch.get_num_threads(),
    )


def calibrate(bench: Bench) -> Calibration:
    """Measure a device, in some seconds. Nothing else should run on it; what runs there is slowed down."""
    rates, busy = bench.products()
    return Calibration(
        device_name=bench.name,
        device_type=bench.device_type,
        torch_version=torch.__version__,
        measured_on=time.strftime("%Y-%m-%d"),
        matmul=rates,
        bandwidth_bytes_per_second=copy_rate(bench),
        launch_seconds=launch_seconds(bench),
        busy=busy,
        threads=bench.threads,
    )


@torch.no_grad()
def product_rates(
    dtype: str, device: torch.device, watch: HostStopwatch, sizes: Iterable[int] = _SIZES
) -> Iterator[MatmulRate]:
    """Products of square matrices of growing size, as far as one takes a tenth of a second at most."""
    fastest = 0.0
    for size in sizes:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            return
        seconds = steady_seconds(watch, _product(*_factors(size, _DTYPES[dtype], device)))
        fastest = max(fastest, flops / seconds)
        yield MatmulRate(dtype, size, flops / seconds)


def _product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    result = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=result)


@torch.no_grad()
def copy_rate(bench: Bench) -> float:
    source = torch.linspace(-1, 1, bench.copy_bytes // 4, device=bench.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / steady_seconds(bench.watch, lambda: target.copy_(source))


@torch.enable_grad()
def launch_seconds(bench: Bench, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the host per tiny kernel, forward and backward: the median of rounds; on a CPU with the kernel."""
    start = torch.ones(8, device=bench.device, requires_grad=True)

    def chain() -> None:
        end = start
        for _ in range(_CHAIN):
            end = end * 1.0009765625
        torch.autograd.grad(end.sum(), start)

    chain()
    found = []
    for _ in range(_CHAIN_ROUNDS):
        bench.watch.settle()
        before = clock()
        chain()
        found.append((clock() - before) / (2 * _CHAIN))
    return statistics.median(found)


def _gpu_is_busy(index: int) -> bool | None:
    """Whether somebody's kernels ran there over the last moments; None where the driver does not say."""
    try:
        return torch.cuda.utilization(index) >= _BUSY_PERCENT
    except Exception:
        # The management libraries, NVIDIA's and AMD's, each have errors of their own.
        logger.debug("the load of GPU %d is not known", index, exc_info=True)
        return None


def load_calibration(device_name: str) -> Calibration | None:
    """What this user measured last on a device of this name; None where nothing can be read."""
    path = _calibration_path(device_name)
    if not path.exists():
        return None
    try:
        found = read_record(path, Calibration, CALIBRATION_SCHEMA_VERSION, "a calibration")
    except OutputError as error:
        logger.warning("%s. Measure again: hf-efficient env --calibrate", first_line(error))
        return None
    return found if found.device_name == device_name else None


def save_calibration(calibration: Calibration) -> Path:
    """Keep it in the user's cache, in an earlier one's place; returns the file. ``SetupError``: it is not writable."""
    path = _calibration_path(calibration.device_name)
    try:
        _keep(path, asdict(calibration))
    except OSError as error:
        why = error.strerror or error
        raise SetupError(f"{path} cannot be written: {why}. Set HF_EFFICIENT_CACHE to a folder that can be.") from error
    return path


def _calibration_path(device_name: str) -> Path:
    plain = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return cache_dir() / "calibrations" / f"{plain or 'device'}.json"


def _keep(path: Path, held: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(held, indent=2) + "\n")
