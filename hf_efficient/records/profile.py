"""What the profilers of a run found, and what each of them cost: operators, Python functions, allocations."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FunctionTime:
    """One function.

    Attributes:
        place: ``transformers/trainer.py:1900 _run_epoch``, or the name of a function of C.
        calls: how often; None where samples were taken.
    """

    place: str
    self_seconds: float
    total_seconds: float
    calls: int | None = None


@dataclass(frozen=True)
class FunctionTable:
    """The functions of one process, the dearest first by their own time."""

    process: str
    tool: str
    seconds: float
    functions: list[FunctionTime] = field(default_factory=list)
    left_out: int = 0


@dataclass(frozen=True)
class CodeLine:
    """One line of a function: its number, its text, how often it ran, and how long that took together."""

    line: int
    text: str
    hits: int
    seconds: float


@dataclass(frozen=True)
class FunctionLines:
    """One function line by line; a line that never ran is left out."""

    place: str
    seconds: float
    lines: list[CodeLine] = field(default_factory=list)


@dataclass(frozen=True)
class LineTable:
    """The named functions, on the thread that trains."""

    functions: list[FunctionLines] = field(default_factory=list)


@dataclass(frozen=True)
class HostMemoryLine:
    """What a line of a named function, with all that it calls, held of the host's memory at the peak."""

    place: str
    text: str
    bytes: int
    allocations: int


@dataclass(frozen=True)
class HostMemoryTable:
    """The lines of the named functions, the largest first.

    Attributes:
        peak_bytes: of the process, in what was allocated since the instrument began.
        lines: what of it was allocated under the named functions.
    """

    peak_bytes: int
    lines: list[HostMemoryLine] = field(default_factory=list)


@dataclass(frozen=True)
class AllocationSite:
    """Allocations of one line of code that were live together.

    Attributes:
        place: ``models/llama/modeling_llama.py:180 forward``, the innermost frame outside torch; in words where there
            is none.
    """

    place: str
    called_from: list[str]
    bytes: int
    blocks: int


@dataclass(frozen=True)
class ModuleAllocations:
    """Allocations of one module, or of those that differ in their numbers alone, that were live together.

    Attributes:
        module: ``model.layers.*.mlp.down_proj``, of a single one its number; `` (backward)`` behind it where its
            gradients asked for them; ``class LlamaMLP`` where the stack alone tells; in words where it is no module.
        place: the line of code that asked for most of it.
    """

    module: str
    bytes: int
    blocks: int
    modules: int
    place: str


@dataclass(frozen=True)
class MemorySnapshot:
    """One device at one moment, and its peak as far as the history goes back.

    Attributes:
        moment: ``after step 10``, ``at the end``, ``out of memory``.
        allocated_bytes: of that, in use by tensors, or waiting for another stream to be done with them.
        inactive_split_bytes: free, but in segments of which another part is in use: what fragmentation keeps from
            being given back, or used for something larger.
        largest_free_bytes: the largest piece that an allocation could get without asking the device.
        peak_bytes: the most that was live at once, as it was asked for, since the history begins.
        modules: what the peak was made of by the modules of the model, the largest first; empty where it is not known.
    """

    moment: str
    reserved_bytes: int
    allocated_bytes: int
    inactive_split_bytes: int
    inactive_split_blocks: int
    largest_free_bytes: int
    peak_bytes: int
    sites: list[AllocationSite] = field(default_factory=list)
    other_sites_bytes: int = 0
    allocation_retries: int | None = None
    failed_bytes: int | None = None
    device_free_bytes: int | None = None
    history_events: int = 0
    modules: list[ModuleAllocations] = field(default_factory=list)
    other_modules_bytes: int = 0


@dataclass(frozen=True)
class InstrumentAccount:
    """What one instrument did on rank 0, and what that cost.

    Attributes:
        cost_seconds: that it added to the run: ``own_seconds``, and what the steps under it took longer than the others
            where that could be compared; None where it never ran.
        own_seconds: spent in its own code between the steps: starting, stopping, writing.
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
        self_cpu_seconds: on the host, without the operators that it calls.
        self_device_seconds: of the kernels that it launched itself; None where no device was traced.
        flops: floating-point operations by torch's formulas; None where they were not asked for, 0 where torch has no
            formula for it.
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
        wall_seconds: of these steps, from the end of the one before to their own, under the profiler.
        self_cpu_seconds: sum over all operators; what is left of ``wall_seconds`` is Python, the Trainer, waiting.
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
        functions: of Python, a table per process: rank 0 and the workers of its data loader.
    """

    instruments: list[InstrumentAccount]
    operators: OperatorTable | None = None
    memory: list[MemorySnapshot] = field(default_factory=list)
    functions: list[FunctionTable] = field(default_factory=list)
    lines: LineTable | None = None
    host_memory: HostMemoryTable | None = None
