"""What a Chrome trace of torch's profiler holds: the breakdown that ``trace/`` makes, and that reports and rules read.

All times are seconds on the trace's own clock. What a trace does not tell is None, never zero.
"""

from __future__ import annotations

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
    """Kernels, or operators, of one family of ``trace/families.py``.

    Attributes:
        seconds: summed; what ran at the same time on two streams is counted twice.
        share: of the sum over all families.
    """

    family: KernelFamily
    seconds: float
    share: float
    count: int


@dataclass(frozen=True)
class KernelTime:
    """All runs of one kernel.

    Attributes:
        name: without the arguments of templates and functions.
        full_name: as the trace has it, at most 400 characters.
        share: of all kernels', copies' and memsets' time.
        operator: that launched most of its time, as far as the trace knows.
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
    """How kernels (not copies and memsets) are submitted, and how long they are.

    Attributes:
        kernels_per_second: of the device's window.
        graph_kernels: submitted by CUDA graphs: one call for many. They have no launch figures.
        length: of the kernels.
        short_kernel_seconds: a kernel below it is about as long as its own submission.
        short_time_share: of the kernels' summed time that short ones take.
        call_seconds: the host's time in the calls that launched kernels, summed.
        call: how long such a call took.
        delay: from the start of the call to the start of the kernel; long where the host is far ahead of the device,
            which is as it should be.
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
        host_memory: None where no host memory is involved, or the trace does not tell.
        bytes: None where the trace does not tell of any of them.
        untold_bytes_count: copies whose bytes the trace does not tell.
        bytes_per_second: over the copies whose bytes are told.
        small_count: of at most 64 KiB: latency, not bandwidth.
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


IdleCause = Literal["host_bound", "launch_bound", "other"]


@dataclass(frozen=True)
class IdleSplit:
    """Why a device, or a stream, ran nothing between its first event and its last; ``trace/device.py`` defines it.

    Attributes:
        host_bound_seconds: the next work was not yet submitted when the gap began, and the gap is long.
        launch_bound_seconds: gaps too short for the host to have done anything but submit the next kernel.
        other_seconds: the work had been submitted before, and the device did not start it: it waited for another
            stream, an event, or memory. ``unknown_seconds`` is part of it.
        unknown_seconds: the trace does not hold the call that submitted the work.
    """

    host_bound_seconds: float
    launch_bound_seconds: float
    other_seconds: float
    unknown_seconds: float
    host_bound_gaps: int
    launch_bound_gaps: int
    other_gaps: int


@dataclass(frozen=True)
class BusyBreakdown:
    """The time of a device, or a stream, from the start of its first event to the end of its last.

    Attributes:
        window_seconds: ``busy_seconds + idle_seconds``.
        busy_seconds: a kernel, a copy or a memset ran; overlapping ones counted once.
        idle_share: of the window.
        compute_seconds: a kernel ran that neither communicates nor copies (what HolisticTraceAnalysis calls compute
            time); overlapping ones counted once.
    """

    window_seconds: float
    busy_seconds: float
    idle_seconds: float
    idle_share: float
    compute_seconds: float
    idle: IdleSplit


@dataclass(frozen=True)
class StreamBreakdown:
    """One stream of a device; its idle split is HolisticTraceAnalysis' own."""

    stream: int
    events: int
    busy: BusyBreakdown


@dataclass(frozen=True)
class Communication:
    """Kernels that communicate between devices, as HolisticTraceAnalysis counts them.

    Attributes:
        seconds: at least one of them ran.
        overlapped_seconds: and a compute kernel at the same time.
        exposed_seconds: and no compute kernel.
        exposed_share: of the device's window.
    """

    kernels: int
    seconds: float
    overlapped_seconds: float
    exposed_seconds: float
    overlap_share: float
    exposed_share: float


@dataclass(frozen=True)
class DeviceGap:
    """A time in which a device ran nothing.

    Attributes:
        start_seconds: since the first event of the trace.
        before, after: the device event that ended before it, and the one that ended it, shortened.
        host: what the thread did that submitted the next event: the longest operators, calls and functions in the
            gap, innermost, with the share of the gap that they take.
        step: the number of the ``ProfilerStep`` in which it began.
    """

    start_seconds: float
    seconds: float
    cause: IdleCause
    before: str
    after: str
    host: tuple[tuple[str, float], ...]
    step: int | None


@dataclass(frozen=True)
class DeviceBreakdown:
    """One device of a trace; all lists have the longest, or busiest, first.

    Attributes:
        device: its number in the trace.
        name: as its driver calls it.
        busy: all its streams together.
        launches: None where no kernel ran.
        communication: None where nothing communicates.
    """

    device: int
    name: str | None
    first_event_seconds: float
    busy: BusyBreakdown
    streams: tuple[StreamBreakdown, ...]
    families: tuple[FamilyTime, ...]
    kernels: tuple[KernelTime, ...]
    launches: LaunchBreakdown | None
    copies: tuple[CopyKind, ...]
    communication: Communication | None
    gaps: tuple[DeviceGap, ...]


@dataclass(frozen=True)
class SyncSite:
    """One place where the host waited for a device.

    Attributes:
        call: of the runtime: ``cudaStreamSynchronize``, or a copy to pageable memory that waits for itself.
        operator: the outermost operator around it, such as ``aten::item``.
        site: ``file:line (function)`` of the innermost recorded Python function around the call that is no part of an
            installed package, at the line at which it is defined.
        idle_after_seconds: the device ran out of work while the host waited there: the idle time of those gaps.
        outside_steps: how many lie outside every ``ProfilerStep``, such as the profiler's own at its end.
    """

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
    """One ``ProfilerStep``: the host's time, and what the devices did in it.

    Attributes:
        busy_seconds: at least one device ran something in that time; None without device events.
        syncs, sync_seconds: waits for a device that began in it, and their time.
    """

    number: int
    start_seconds: float
    seconds: float
    busy_seconds: float | None
    syncs: int
    sync_seconds: float


@dataclass(frozen=True)
class OperatorTime:
    """All calls of one operator on the host.

    Attributes:
        self_seconds: without the operators and calls of the runtime inside it.
        share: of the self time of all operators.
        total_seconds: with them; a call directly inside one of the same operator is not counted again.
    """

    name: str
    family: KernelFamily
    self_seconds: float
    share: float
    total_seconds: float
    count: int


@dataclass(frozen=True)
class HostBreakdown:
    """The operators on the host, the ones of longest self time first.

    Attributes:
        threads: that ran operators.
        operator_seconds: the self time of all of them, threads added up.
        families: all that ran inside ``Optimizer.step`` is the optimizer's.
    """

    threads: int
    operator_seconds: float
    families: tuple[FamilyTime, ...]
    operators: tuple[OperatorTime, ...]


@dataclass(frozen=True)
class TraceFile:
    """The file, and how much of it could be read.

    Attributes:
        read_bytes: of JSON, after decompression.
        events: complete events of all kinds, those that no figure uses among them.
        unreadable_events: that are no valid JSON, or no event; they are left out.
        truncated: the file ends before its list of events does; what came before was read.
        device_names: of the devices that the trace's process saw, by index.
        has_stacks: Python functions were recorded, or operators with their call stacks.
    """

    path: str
    read_bytes: int
    events: int
    unreadable_events: int
    truncated: bool
    rank: int | None
    world_size: int | None
    backend: str | None
    device_names: dict[int, str]
    has_stacks: bool
    has_shapes: bool


@dataclass(frozen=True)
class TraceBreakdown:
    """Where the time of a trace went.

    Attributes:
        window_seconds: from its first event to its last.
        devices: none where the trace has no device events; then ``host`` says where the time went.
        host: None where the trace has no operators.
        syncs: the costliest first.
        remarks: what a reader should know before the figures.
    """

    file: TraceFile
    window_seconds: float
    devices: tuple[DeviceBreakdown, ...]
    host: HostBreakdown | None
    syncs: tuple[SyncSite, ...]
    steps: tuple[TraceStep, ...]
    remarks: tuple[str, ...]
    schema_version: int = 1
