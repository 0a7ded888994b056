"""What the host did, by a trace: steps, operators, and where it waited for a device.

All times are seconds on the trace's own clock. What a trace does not tell is None, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.records.trace_kernels import FamilyTime, KernelFamily

__all__ = ["HostBreakdown", "OperatorTime", "SyncSite", "TraceStep"]


@dataclass(frozen=True)
class SyncSite:
    """One place where the host waited for a device.

    Attributes:
        call: of the runtime: ``cudaStreamSynchronize``, or a copy to pageable memory that waits for itself.
        operator: the outermost operator around it, such as ``aten::item``; None: no operator was around.
        site: ``file:line`` and the function, from the recorded stack: the innermost Python function around the call
            that is no part of an installed package, and the line at which it is defined; None without stacks.
        count, seconds: waits, and the host's time in them.
        longest_seconds: the longest of them.
        idle_after_seconds: the device ran out of work while the host waited there: the idle time of those gaps.
        outside_steps: how many lie outside every ``ProfilerStep``, such as the profiler's own at its end; 0 where the
            trace has no steps.
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
        number: as the profiler counts.
        start_seconds: since the first event of the trace.
        seconds: the host's.
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
        name: as the dispatcher calls it.
        family: see ``trace/families.py``.
        self_seconds: without the operators and calls of the runtime inside it.
        share: of the self time of all operators.
        total_seconds: with them; a call directly inside one of the same operator is not counted again.
        count: calls.
    """

    name: str
    family: KernelFamily
    self_seconds: float
    share: float
    total_seconds: float
    count: int


@dataclass(frozen=True)
class HostBreakdown:
    """The operators on the host.

    Attributes:
        threads: that ran operators.
        operator_seconds: the self time of all of them, threads added up.
        families: their self time by kind of work, the longest first; all that ran inside ``Optimizer.step`` is the
            optimizer's.
        operators: the ones of longest self time.
    """

    threads: int
    operator_seconds: float
    families: tuple[FamilyTime, ...]
    operators: tuple[OperatorTime, ...]
