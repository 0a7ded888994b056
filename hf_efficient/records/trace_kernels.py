"""What a device ran, by a trace: kernels by kind, how they were launched, and copies.

All times are seconds on the trace's own clock. What a trace does not tell is None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["KERNEL_FAMILIES", "CopyKind", "FamilyTime", "KernelFamily", "KernelTime", "LaunchBreakdown", "Percentiles"]

KernelFamily = Literal[
    "matmul", "attention", "elementwise", "reduction", "normalisation", "embedding", "optimizer", "copy", "memset",
    "communication", "other",
]  # fmt: skip
KERNEL_FAMILIES: tuple[KernelFamily, ...] = get_args(KernelFamily)


@dataclass(frozen=True)
class Percentiles:
    """Of a distribution, in seconds; linear between neighbours."""

    p10_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    largest_seconds: float


@dataclass(frozen=True)
class FamilyTime:
    """Kernels, or operators, of one family.

    Attributes:
        family: see ``trace/families.py``.
        seconds: summed; what ran at the same time on two streams is counted twice.
        share: of the sum over all families.
        count: kernels, or calls of operators.
    """

    family: KernelFamily
    seconds: float
    share: float
    count: int


@dataclass(frozen=True)
class KernelTime:
    """All runs of one kernel.

    Attributes:
        name: shortened: without the arguments of templates and functions.
        full_name: as the trace has it, at most 400 characters.
        family: what it belongs to.
        seconds, share: summed; of all kernels', copies' and memsets' time.
        count: how often it ran.
        mean_seconds: of a run.
        operator: that launched most of its time, as far as the trace tells; None where it does of none of it.
    """

    name: str
    full_name: str
    family: KernelFamily
    seconds: float
    share: float
    count: int
    mean_seconds: float
    operator: str | None


@dataclass(frozen=True)
class LaunchBreakdown:
    """How kernels are submitted, and how long they are.

    Attributes:
        kernels: that ran; copies and memsets not counted.
        kernels_per_second: of the device's window.
        graph_kernels: of them submitted by CUDA graphs: one call for many. They have no launch figures.
        length: of the kernels.
        short_kernel_seconds: what counts as short: a kernel below it is about as long as its own submission.
        short_share: of the kernels that are short.
        short_time_share: of the kernels' summed time that short ones take.
        call_seconds: the host's time in the calls that launched kernels, summed.
        call: how long such a call took.
        delay: from the start of the call to the start of the kernel; a long one where the host is far ahead of the
            device, which is as it should be.
    """

    kernels: int
    kernels_per_second: float
    graph_kernels: int
    length: Percentiles
    short_kernel_seconds: float
    short_share: float
    short_time_share: float
    call_seconds: float | None
    call: Percentiles | None
    delay: Percentiles | None


@dataclass(frozen=True)
class CopyKind:
    """Copies of one direction from and to one kind of memory.

    Attributes:
        direction: ``HtoD``, ``DtoH``, ``DtoD``, ``PtoP``, or ``unknown``.
        host_memory: ``pinned``, ``pageable``, or None: no host memory is involved, or the trace does not tell.
        count, seconds: copies, and their summed time on the device.
        bytes: copied; None where the trace does not tell of any of them.
        untold_bytes_count: copies whose bytes the trace does not tell.
        bytes_per_second: over the copies whose bytes are told.
        small_count: of at most 64 KiB, where bytes are told: latency, not bandwidth.
        call_seconds: the host's time in the calls that submitted them; a pageable copy, or one to the host, blocks.
    """

    direction: str
    host_memory: Literal["pinned", "pageable"] | None
    count: int
    seconds: float
    bytes: int | None
    untold_bytes_count: int
    bytes_per_second: float | None
    small_count: int
    call_seconds: float | None
