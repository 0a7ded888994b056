"""What the deeper instruments of a run found, and what each of them cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from hf_efficient.records.memory_snapshot import MemorySnapshot
from hf_efficient.records.python_profile import FunctionTable, HostMemoryTable, LineTable

__all__ = ["InstrumentAccount", "OperatorTable", "OperatorTime", "ProfileAccount"]


@dataclass(frozen=True)
class InstrumentAccount:
    """What one instrument did on rank 0, and what that cost.

    Attributes:
        name: ``trace``, ``memory``, ``python``, ``lines``, ``host_memory``, ``nvtx``.
        cost_seconds: that it added to the run: ``own_seconds``, and what the steps under it took longer than the others
            where that could be compared; None where it never ran.
        own_seconds: spent in its own code between the steps: starting, stopping, writing.
        steps: optimizer steps under it.
        files: that it wrote, as paths inside the ``efficiency`` folder.
        note: what the cost is made of, what is missing, and why.
    """

    name: str
    cost_seconds: float | None
    own_seconds: float
    steps: int
    files: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class OperatorTime:
    """One operator at one set of input shapes, all its calls in the traced steps together.

    Attributes:
        name: as the dispatcher calls it: ``aten::mm``.
        calls: how often it ran.
        self_cpu_seconds: on the host, without the operators that it calls.
        self_device_seconds: of the kernels that it launched itself; None where no device was traced.
        flops: floating-point operations by torch's formulas; None where they were not asked for, 0 where torch has no
            formula for it.
        shapes: of its inputs, ``[16, 64] [64, 64]``; empty where they were not asked for.
    """

    name: str
    calls: int
    self_cpu_seconds: float
    self_device_seconds: float | None
    flops: int | None
    shapes: str = ""


@dataclass(frozen=True)
class OperatorTable:
    """The operators of the traced steps of one rank, the dearest first.

    Attributes:
        rank: of the process.
        steps: that were traced and kept.
        wall_seconds: of these steps, from the end of the one before to their own, under the profiler.
        self_cpu_seconds: sum over all operators; what is left of ``wall_seconds`` is Python, the Trainer, waiting.
        self_device_seconds: sum over all kernels, copies and fills; None where no device was traced.
        operators: by time on the device where one was traced, else on the host.
        left_out: how many further rows there were.
    """

    rank: int
    steps: int
    wall_seconds: float
    self_cpu_seconds: float
    self_device_seconds: float | None
    operators: list[OperatorTime]
    left_out: int = 0


@dataclass(frozen=True)
class ProfileAccount:
    """Everything that the deeper instruments left.

    Attributes:
        instruments: those that were switched on.
        operators: of rank 0; None where nothing was traced, or the file is gone.
        memory: snapshots of rank 0, oldest first.
        functions: of Python, a table per process: rank 0 and the workers of its data loader.
        lines: of the functions that were named for it.
        host_memory: of the functions that were named for it.
    """

    instruments: list[InstrumentAccount]
    operators: OperatorTable | None = None
    memory: list[MemorySnapshot] = field(default_factory=list)
    functions: list[FunctionTable] = field(default_factory=list)
    lines: LineTable | None = None
    host_memory: HostMemoryTable | None = None
