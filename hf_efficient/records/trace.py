"""What a Chrome trace of torch's profiler holds; times are seconds on its own clock; None is unknown, never zero."""

from dataclasses import dataclass
from typing import Literal, get_args

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
    """Kernels, or operators, of one family of ``trace/families.py``; concurrent streams are counted twice."""

    family: KernelFamily
    seconds: float
    share: float
    count: int


@dataclass(frozen=True)
class KernelTime:
    """All runs of one kernel. ``name``: without the arguments of templates and functions; ``full_name``: at most 400
    characters. ``share``: of all kernels', copies' and memsets' time."""

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
    """How kernels (not copies and memsets) are submitted, and how long they are. ``graph_kernels``: submitted by CUDA
    graphs, one call for many, without launch figures. ``short_kernel_seconds``: a shorter kernel is about as long as
    its own submission. ``call_seconds``, ``call``: the host's time in the calls that launched kernels, summed and each.
    ``delay``: from the start of the call to that of the kernel; long, as it should be, where the host is far ahead."""

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
    """Copies of one direction (``HtoD``, ``DtoH``, ``DtoD``, ``PtoP``, ``unknown``) and one ``host_memory``: None where
    none is involved, or it is unknown. ``bytes`` and ``bytes_per_second`` are of copies of known size. ``small_count``:
    of at most 64 KiB: latency, not bandwidth. ``call_seconds``: the host's time in the submitting calls; a pageable
    copy, or one to the host, blocks."""

    direction: str
    host_memory: Literal["pinned", "pageable"] | None
    count: int
    seconds: float
    bytes: int | None
    bytes_per_second: float | None
    small_count: int
    call_seconds: float | None


IdleCause = Literal["host_bound", "launch_bound", "other"]


@dataclass(frozen=True)
class IdleSplit:
    """Why a device ran nothing between its first event and its last; ``trace/breakdown.py`` defines it.
    ``host_bound_seconds``: long gaps at whose start the next work was not yet submitted. ``launch_bound_seconds``: gaps
    too short for the host to do more than submit the next kernel. ``other_seconds``: submitted work waited for another
    stream, an event or memory; ``unknown_seconds``, whose submission the trace does not hold, is part of it."""

    host_bound_seconds: float
    launch_bound_seconds: float
    other_seconds: float
    unknown_seconds: float
    host_bound_gaps: int
    launch_bound_gaps: int
    other_gaps: int


@dataclass(frozen=True)
class BusyBreakdown:
    """The time of a device from the start of its first event to the end of its last. ``busy_seconds``: a
    kernel, copy or memset ran; overlapping ones counted once. ``compute_seconds``: a kernel ran that neither
    communicates nor copies, as HolisticTraceAnalysis counts it."""

    window_seconds: float
    busy_seconds: float
    idle_seconds: float
    idle_share: float
    compute_seconds: float
    idle: IdleSplit


@dataclass(frozen=True)
class Communication:
    """Kernels that communicate between devices, beside compute kernels (overlapped) or alone (exposed)."""

    kernels: int
    seconds: float
    overlapped_seconds: float
    exposed_seconds: float
    overlap_share: float
    exposed_share: float


@dataclass(frozen=True)
class DeviceGap:
    """A time in which a device ran nothing. ``start_seconds``: since the first event of the trace. ``host``: the
    longest operators, calls and functions of the submitting thread in the gap, with their share of it."""

    start_seconds: float
    seconds: float
    cause: IdleCause
    before: str
    after: str
    host: tuple[tuple[str, float], ...]
    step: int | None


@dataclass(frozen=True)
class DeviceBreakdown:
    """One device of a trace; all lists have the longest, or busiest, first; None: no kernel, or no communication."""

    device: int
    name: str | None
    first_event_seconds: float
    busy: BusyBreakdown
    families: tuple[FamilyTime, ...]
    kernels: tuple[KernelTime, ...]
    launches: LaunchBreakdown | None
    copies: tuple[CopyKind, ...]
    communication: Communication | None
    gaps: tuple[DeviceGap, ...]


@dataclass(frozen=True)
class SyncSite:
    """One place where the host waited for a device. ``call``: of the runtime: ``cudaStreamSynchronize``, or a copy to
    pageable memory that waits for itself. ``site``: ``file:line (function)`` of the innermost recorded Python function
    outside installed packages. ``idle_after_seconds``: idle time of the gaps in which the device ran out of work
    meanwhile."""

    call: str
    operator: str | None
    site: str | None
    count: int
    seconds: float
    longest_seconds: float
    idle_after_seconds: float
    outside_steps: int


@dataclass(frozen=True)
class TraceStep:
    """One ``ProfilerStep``: the host's time, the devices' busy time (None without events), waits that began in it."""

    number: int
    start_seconds: float
    seconds: float
    busy_seconds: float | None
    syncs: int
    sync_seconds: float


@dataclass(frozen=True)
class OperatorTime:
    """All calls of one operator on the host; a call directly inside one of the same operator counts once."""

    name: str
    family: KernelFamily
    self_seconds: float
    share: float
    total_seconds: float
    count: int


@dataclass(frozen=True)
class HostBreakdown:
    """The operators on the host, the longest self time first; all inside ``Optimizer.step`` is the optimizer's."""

    threads: int
    operator_seconds: float
    families: tuple[FamilyTime, ...]
    operators: tuple[OperatorTime, ...]


@dataclass(frozen=True)
class TraceFile:
    """The file, and how much of it could be read. ``read_bytes``: of JSON, after decompression. ``unreadable_events``:
    no valid JSON, or no event; they are left out. ``truncated``: the file ends before its list of events; what came
    before was read."""

    path: str
    read_bytes: int
    events: int
    unreadable_events: int
    truncated: bool
    rank: int | None
    world_size: int | None
    backend: str | None
    device_names: dict[int, str]
    has_shapes: bool


@dataclass(frozen=True)
class TraceBreakdown:
    """Where the time of a trace went, first event to last; parts without events are empty. Read ``remarks`` first."""

    file: TraceFile
    window_seconds: float
    devices: tuple[DeviceBreakdown, ...]
    host: HostBreakdown | None
    syncs: tuple[SyncSite, ...]
    steps: tuple[TraceStep, ...]
    remarks: tuple[str, ...]
    schema_version: int = 2
