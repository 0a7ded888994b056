"""What a device does of matrix products, memory traffic and launches: peaks for its account, roofs for plans of it.

Matrices are made without a random number, but hold no constant: products of zeros draw less power and run faster.
"""

import functools
import hashlib
import json
import logging
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from hf_efficient.errors import OutputError, SetupError, first_line
from hf_efficient.facts.environment import cpu_emulates_bf16, cpu_model
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
_WORTH_FLOAT32 = 1.25
_COPY_BYTES = 2**30
_CHAIN = 200
"""Operators of the chain: forward and backward stay under what a CUDA stream queues before the host has to wait."""
_CHAIN_ROUNDS = 20
_BUSY_PERCENT = 5
_RUN_SECONDS = 0.15
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def steady_seconds(work: Callable[[], object]) -> float:
    """Seconds of the current device for one call, by torch's own timer: the median of blocks between which it waits."""
    from torch.utils.benchmark import Timer

    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=_RUN_SECONDS).median)


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
    path = _kept_in(str(dtype))
    with suppress(OSError, ValueError, TypeError):  # there is none, or no whole one
        return MatmulPeak(**json.loads(path.read_bytes()))
    peak = measure_matmul(dtype)
    if not peak.is_of_a_busy_machine:
        _try_to_keep(path, asdict(peak))
    return peak


def _kept_in(what: str) -> Path:
    # What oneDNN may compute products of float32 in; None before torch 2.9.
    fp32_precision = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None)
    key = (cpu_model(), os.cpu_count(), torch.get_num_threads(), torch.__version__, what, fp32_precision)
    return cache_dir() / "matmul_peaks" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"


def _try_to_keep(path: Path, found: Any) -> None:
    try:
        _keep(path, found)
    except OSError as error:
        logger.debug("%s cannot be kept: %s", path, error)


def cpu_is_faster_in_float32() -> bool:
    """Whether this CPU multiplies float32 so much faster than bfloat16 that twice the memory is worth it. Instructions
    do not tell: an Intel Xeon with AVX512-BF16 and without AMX did 326 GFLOP/s in float32 and 168 in bfloat16 (2,048
    cubed, two threads, torch 2.13). Ranks that share the cores go by instructions all the same, since each would
    measure the others, and they have to agree."""
    if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
        return cpu_emulates_bf16()
    return _float32_is_faster(torch.get_num_threads())


@functools.cache
def _float32_is_faster(threads: int) -> bool:
    """The answer is kept, of a busy machine too: a run that resumes gets the same one."""
    path = _kept_in("float32 or bfloat16")
    with suppress(OSError, ValueError):
        return bool(json.loads(path.read_bytes()))
    peaks = [cpu_matmul_peak(one) for one in (torch.float32, torch.bfloat16)]
    if any(peak.is_of_a_busy_machine for peak in peaks):  # both under the same load
        peaks = [measure_matmul(one) for one in (torch.float32, torch.bfloat16)]
    is_faster = peaks[0].flops_per_second > _WORTH_FLOAT32 * peaks[1].flops_per_second
    _try_to_keep(path, is_faster)
    return is_faster


@torch.no_grad()
def measure_matmul(dtype: torch.dtype) -> MatmulPeak:
    """The fastest of products of growing size, each of ``2 * size ** 3`` FLOPs; draws no random number."""
    fastest, best_size, least_share = 0.0, _CPU_SIZES[0], 1.0
    for size in _CPU_SIZES:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            break
        seconds, cpu_seconds = _fastest_product(size, dtype)
        rate, of_cpu = flops / seconds, cpu_seconds / (seconds * torch.get_num_threads())
        share = round(min(1.0, of_cpu), 3) if of_cpu else 1.0  # the clock did not tick
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


def devices() -> Iterator[torch.device]:
    """A GPU of each name, then the CPU."""
    indices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    names = [torch.cuda.get_device_name(index) for index in indices]
    yield from (torch.device("cuda", names.index(name)) for name in dict.fromkeys(names))
    yield torch.device("cpu")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model() or "CPU"


def calibrate(device: torch.device) -> Calibration:
    """Measure a device, in some seconds. Nothing else should run on it; what runs there is slowed down."""
    on_gpu = device.type == "cuda"
    with torch.cuda.device(device) if on_gpu else nullcontext():
        rates, busy = _gpu_products(device) if on_gpu else _cpu_products()
        return Calibration(
            device_name=device_name(device),
            device_type="cuda" if on_gpu else "cpu",
            torch_version=torch.__version__,
            measured_on=time.strftime("%Y-%m-%d"),
            matmul=rates,
            bandwidth_bytes_per_second=copy_rate(device),
            launch_seconds=launch_seconds(device),
            busy=busy,
            threads=None if on_gpu else torch.get_num_threads(),
        )


def _gpu_products(device: torch.device) -> tuple[tuple[MatmulRate, ...], bool | None]:
    """With whether others held it up; None: not known."""
    busy = _gpu_is_busy(device)  # before this process keeps it busy itself
    sixteen = ("bf16", "fp16") if torch.cuda.is_bf16_supported(including_emulation=False) else ("fp16",)
    return tuple(rate for dtype in (*sixteen, "fp32") for rate in product_rates(dtype, device)), busy


def _cpu_products() -> tuple[tuple[MatmulRate, ...], bool]:
    peaks = {dtype: measure_matmul(_DTYPES[dtype]) for dtype in ("bf16", "fp32")}
    rates = tuple(MatmulRate(dtype, peak.size, peak.flops_per_second) for dtype, peak in peaks.items())
    return rates, any(peak.is_of_a_busy_machine for peak in peaks.values())


@torch.no_grad()
def product_rates(dtype: str, device: torch.device, sizes: Iterable[int] = _SIZES) -> Iterator[MatmulRate]:
    """Products of square matrices of growing size, as far as one takes a tenth of a second at most."""
    fastest = 0.0
    for size in sizes:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            return
        left, right = _factors(size, _DTYPES[dtype], device)
        seconds = steady_seconds(functools.partial(torch.mm, left, right, out=torch.empty_like(left)))
        fastest = max(fastest, flops / seconds)
        yield MatmulRate(dtype, size, flops / seconds)


@torch.no_grad()
def copy_rate(device: torch.device) -> float:
    source = torch.linspace(-1, 1, _copy_bytes(device) // 4, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / steady_seconds(lambda: target.copy_(source))


def _copy_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return min(_COPY_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    return min(_COPY_BYTES, psutil.virtual_memory().available // 8)


@torch.enable_grad()
def launch_seconds(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the host per tiny kernel, forward and backward: the median of rounds; on a CPU with the kernel."""
    start = torch.ones(8, device=device, requires_grad=True)

    def chain() -> None:
        end = start
        for _ in range(_CHAIN):
            end = end * 1.0009765625
        torch.autograd.grad(end.sum(), start)

    chain()
    found = []
    for _ in range(_CHAIN_ROUNDS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        before = clock()
        chain()
        found.append((clock() - before) / (2 * _CHAIN))
    return statistics.median(found)


def _gpu_is_busy(device: torch.device) -> bool | None:
    """Whether somebody's kernels ran there over the last moments; None where the driver does not say."""
    try:
        return torch.cuda.utilization(device) >= _BUSY_PERCENT
    except Exception:
        # The management libraries, NVIDIA's and AMD's, each have errors of their own.
        logger.debug("the load of %s is not known", device, exc_info=True)
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


def _keep(path: Path, held: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(held, indent=2) + "\n")
