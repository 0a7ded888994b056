"""The rate of matrix products on this CPU: the peak that a training on it is held against.

What a device does of matrix products, memory traffic and launches: the roofs that plans for it take.

Matrices are made without a random number, but hold no constant: products of zeros draw less power and run faster.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch

from hf_efficient.facts.environment import cpu_model
from hf_efficient.facts.tables import cache_dir
from hf_efficient.profilers.stopwatch import EventStopwatch, HostStopwatch, Stopwatch, steady_seconds
from hf_efficient.records.device import Calibration, MatmulRate

logger = logging.getLogger(__name__)

_SIZES = (128, 256, 512, 1024, 2048, 4096)
_PRODUCT_SECONDS = 0.1
"""A size whose product would take longer is left out."""
_SIZE_SECONDS = 0.12
_FEWEST = 3
_BUSY_BELOW = 0.8
"""Products that had the machine to themselves got 0.98 and more of the CPU that they asked for, on two cores."""


@dataclass(frozen=True)
class MatmulPeak:
    """What was measured.

    Attributes:
        flops_per_second: the fastest product of all sizes.
        size: rows and columns of that product's matrices.
        threads: that torch computed with.
        measured_on: date, ISO 8601.
        cpu_share: CPU time of the process over wall time times threads, of that product or of a larger one, whichever
            got less: a larger one that was held up might have been faster.
    """

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
    """The peak in this dtype with torch's present number of threads, from the user's cache where it is known.

    It is measured in a second at most, once for each CPU model, number of threads, version of torch, dtype and setting
    of float32's precision. What cannot be kept is measured again next time, and so is what a busy machine gave.
    """
    key: dict[str, object] = {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "dtype": str(dtype),
        "fp32_precision": _fp32_precision(),
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_dir() / "matmul_peaks" / f"{name}.json"
    known = _read(path, key)
    if known is not None:
        return known
    peak = measure_matmul(dtype)
    if not peak.is_of_a_busy_machine:
        _write(path, {"key": key, "peak": asdict(peak)})
    return peak


@torch.no_grad()
def measure_matmul(dtype: torch.dtype) -> MatmulPeak:
    """Multiply square matrices of growing size, and take the fastest product: ``2 * size ** 3`` FLOPs over its time.

    The matrices are the same every time; no random number is drawn. The larger sizes are tried only where they are
    fast, so a second is enough on a slow machine as well.
    """
    fastest, best_size, least_share = 0.0, _SIZES[0], 1.0
    for size in _SIZES:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            break
        seconds, cpu_seconds = _fastest_product(size, dtype)
        rate, share = flops / seconds, _share(cpu_seconds, seconds)
        if rate > fastest:
            fastest, best_size, least_share = rate, size, 1.0
        least_share = min(least_share, share)
    return MatmulPeak(fastest, best_size, torch.get_num_threads(), time.strftime("%Y-%m-%d"), least_share)


def _share(cpu_seconds: float, seconds: float) -> float:
    """Of the CPU that a product asked for; 1 where the process's clock is too coarse to tell."""
    return round(min(1.0, cpu_seconds / (seconds * torch.get_num_threads())), 3) if cpu_seconds > 0 else 1.0


def _fastest_product(size: int, dtype: torch.dtype) -> tuple[float, float]:
    """Its wall time, and the CPU time of the process meanwhile, in seconds."""
    left = torch.linspace(-1, 1, size * size, device="cpu", dtype=torch.float32).reshape(size, size).to(dtype)
    right = left.t().contiguous()
    result = torch.mm(left, right)  # the first one builds the kernel
    fastest, until, done = (float("inf"), 0.0), time.perf_counter() + _SIZE_SECONDS, 0
    while done < _FEWEST or time.perf_counter() < until:
        cpu_before, before = time.process_time(), time.perf_counter()
        torch.mm(left, right, out=result)
        seconds = time.perf_counter() - before
        fastest, done = min(fastest, (seconds, time.process_time() - cpu_before)), done + 1
    return fastest


def _fp32_precision() -> str | None:
    """What oneDNN may compute products of float32 in; None before torch 2.9."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return getattr(matmul, "fp32_precision", None)


def _read(path: Path, key: dict[str, object]) -> MatmulPeak | None:
    try:
        held = json.loads(path.read_bytes())
        if held["key"] != key or not held["peak"]["flops_per_second"] > 0:
            return None
        if "cpu_share" not in held["peak"]:  # of a version that did not see a busy machine
            return None
        return MatmulPeak(**held["peak"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(path: Path, held: dict[str, object]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.debug("%s cannot be kept: %s", path, error)
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


_CALIBRATION_SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""A size whose product would take longer is left out."""
_COPY_BYTES = 2**30
_CHAIN = 200
"""Operators of the chain: forward and backward stay under what a CUDA stream queues before the host has to wait."""
_CHAIN_ROUNDS = 20
_BUSY_PERCENT = 5
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Bench:
    """A device, and how it is measured.

    Attributes:
        device: where tensors are made.
        name: of the device.
        device_type: ``cuda`` or ``cpu``.
        watch: of its time.
        products: measures products, and tells whether others held them up; None where that cannot be told.
        copy_bytes: of the tensor that is copied.
        threads: that torch computes with, on a CPU.
    """

    device: torch.device
    name: str
    device_type: Literal["cuda", "cpu"]
    watch: Stopwatch
    products: Callable[[], tuple[tuple[MatmulRate, ...], bool | None]]
    copy_bytes: int
    threads: int | None = None


def benches() -> Iterator[Bench]:
    """Every model of CUDA device that torch sees here, once, and the CPU."""
    seen = set()
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        name = torch.cuda.get_device_name(index)
        if name not in seen:
            seen.add(name)
            yield cuda_bench(index)
    yield cpu_bench()


def cuda_bench(index: int) -> Bench:
    """A CUDA device: events on its stream, products of several sizes in each dtype that it computes in itself."""
    device = torch.device("cuda", index)
    watch = EventStopwatch(
        lambda: torch.cuda.Event(enable_timing=True), lambda: torch.cuda.synchronize(device)
    )  # fmt: skip
    sixteen = ("bf16", "fp16") if torch.cuda.is_bf16_supported(including_emulation=False) else ("fp16",)

    def products() -> tuple[tuple[MatmulRate, ...], bool | None]:
        busy = _gpu_is_busy(index)  # before this process keeps it busy itself
        return tuple(rate for dtype in (*sixteen, "fp32") for rate in product_rates(dtype, device, watch)), busy

    free, _ = torch.cuda.mem_get_info(index)
    name = torch.cuda.get_device_name(index)
    return Bench(device, name, "cuda", watch, products, copy_bytes=min(_COPY_BYTES, free // 4))


def cpu_bench() -> Bench:
    """The CPU, with torch's present number of threads."""

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
    dtype: str, device: torch.device, watch: Stopwatch, sizes: Iterable[int] = _CALIBRATION_SIZES
) -> Iterator[MatmulRate]:
    """Products of square matrices of growing size, as far as one takes a tenth of a second at most."""
    fastest = 0.0
    for size in sizes:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            return
        spread = torch.linspace(-1, 1, size * size, device=device).reshape(size, size)
        left = spread.to(_DTYPES[dtype])
        seconds = steady_seconds(watch, _product(left, left.t().contiguous()))
        fastest = max(fastest, flops / seconds)
        yield MatmulRate(dtype, size, flops / seconds)


@torch.no_grad()
def copy_rate(bench: Bench) -> float:
    """Bytes read and written per second by the copy of a tensor that no cache holds."""
    source = torch.linspace(-1, 1, bench.copy_bytes // 4, device=bench.device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / steady_seconds(bench.watch, lambda: target.copy_(source))


@torch.enable_grad()
def launch_seconds(bench: Bench, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the host for each tiny kernel, launched forward and backward as in training: the median of rounds.

    On a CPU the kernel itself is in it; of eight numbers, it is next to nothing.
    """
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


def _product(left: torch.Tensor, right: torch.Tensor) -> Callable[[], object]:
    result = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=result)


def _gpu_is_busy(index: int) -> bool | None:
    """Whether somebody's kernels ran there over the last moments; None where the driver does not tell."""
    try:
        return torch.cuda.utilization(index) >= _BUSY_PERCENT
    except Exception:
        # The management libraries, NVIDIA's and AMD's, each have errors of their own.
        logger.debug("the load of GPU %d cannot be told", index, exc_info=True)
        return None
