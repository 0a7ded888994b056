"""The rate of matrix products on this CPU: the peak that a training on it is held against."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hf_efficient.hardware.environment import cpu_model
from hf_efficient.hardware.paths import cache_dir

__all__ = ["MatmulPeak", "cpu_matmul_peak", "measure_matmul"]

logger = logging.getLogger(__name__)

_SIZES = (128, 256, 512, 1024, 2048, 4096)
_PRODUCT_SECONDS = 0.1
"""A size whose product would take longer is left out."""
_SIZE_SECONDS = 0.12
_FEWEST = 3


@dataclass(frozen=True)
class MatmulPeak:
    """What was measured.

    Attributes:
        flops_per_second: the fastest product of all sizes.
        size: rows and columns of that product's matrices.
        threads: that torch computed with.
        measured_on: date, ISO 8601.
    """

    flops_per_second: float
    size: int
    threads: int
    measured_on: str


def cpu_matmul_peak(dtype: torch.dtype) -> MatmulPeak:
    """The peak in this dtype with torch's present number of threads, from the user's cache where it is known.

    It is measured in a second at most, once for each CPU model, number of threads, version of torch, dtype and setting
    of float32's precision. What cannot be kept is measured again next time.
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
    _write(path, {"key": key, "peak": asdict(peak)})
    return peak


@torch.no_grad()
def measure_matmul(dtype: torch.dtype) -> MatmulPeak:
    """Multiply square matrices of growing size, and take the fastest product: ``2 * size ** 3`` FLOPs over its time.

    The matrices are the same every time; no random number is drawn. The larger sizes are tried only where they are
    fast, so a second is enough on a slow machine as well.
    """
    fastest, best_size = 0.0, _SIZES[0]
    for size in _SIZES:
        flops = 2 * size**3
        if fastest and flops / fastest > _PRODUCT_SECONDS:
            break
        rate = flops / _fastest_product(size, dtype)
        if rate > fastest:
            fastest, best_size = rate, size
    return MatmulPeak(fastest, best_size, torch.get_num_threads(), time.strftime("%Y-%m-%d"))


def _fastest_product(size: int, dtype: torch.dtype) -> float:
    left = torch.linspace(-1, 1, size * size, device="cpu", dtype=torch.float32).reshape(size, size).to(dtype)
    right = left.t().contiguous()
    result = torch.mm(left, right)  # the first one builds the kernel
    fastest, until, done = float("inf"), time.perf_counter() + _SIZE_SECONDS, 0
    while done < _FEWEST or time.perf_counter() < until:
        before = time.perf_counter()
        torch.mm(left, right, out=result)
        fastest, done = min(fastest, time.perf_counter() - before), done + 1
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
