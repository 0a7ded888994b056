"""What the profilers of a run found, and what each of them cost: operators, Python functions, allocations."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FunctionTime:
    """One function. ``place`` is ``transformers/trainer.py:1900 _run_epoch`` or a name of C; no ``calls`` where samples
    were taken."""

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
    """The lines of the named functions, the largest first. ``peak_bytes`` is the peak of what the process allocated
    since the instrument began, ``lines`` their part of it."""

    peak_bytes: int
    lines: list[HostMemoryLine] = field(default_factory=list)


@dataclass(frozen=True)
class AllocationSite:
    """Allocations of one line of code that were live together. ``place``: the innermost frame outside torch,
    ``models/llama/modeling_llama.py:180 forward``; else in words."""

    place: str
    called_from: list[str]
    bytes: int
    blocks: int


@dataclass(frozen=True)
class ModuleAllocations:
    """Allocations of one module, or of those that differ in their numbers alone, that were live together. ``module``:
    ``model.layers.*.mlp.down_proj``, of a single one its number; `` (backward)`` behind it for gradients;
    ``class LlamaMLP`` where only the stack is known; in words where it is no module. ``place``: the line of code that
    asked for most of it."""

    module: str
    bytes: int
    blocks: int
    modules: int
    place: str


@dataclass(frozen=True)
class MemorySnapshot:
    """One device at one moment, and its peak as far as the history goes back.

    ``moment``: ``after step 10``, ``at the end``, ``out of memory``. ``allocated_bytes``: in use by tensors, or waiting
    for another stream to finish with them. ``inactive_split_bytes``: free in segments partly in use: what fragmentation
    keeps from other uses. ``largest_free_bytes``: the largest allocation without asking the device. ``peak_bytes``: the
    most requested bytes live at once since the history begins."""

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
    """What one instrument did on rank 0, and what that cost. ``cost_seconds``: ``own_seconds`` and what steps under it
    took longer, where comparable; None where it never ran. ``own_seconds``: in its own code between the steps:
    starting, stopping, writing."""

    name: str
    cost_seconds: float | None
    own_seconds: float
    steps: int
    files: list[str] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class OperatorTime:
    """One operator at one set of input shapes, all its calls in the traced steps together. ``self_cpu_seconds``: on the
    host, without the operators that it calls. ``self_device_seconds``: of kernels that it launched itself; None where
    no device was traced. ``flops``: by torch's formulas; None where not asked for, 0 where torch has none."""

    name: str
    calls: int
    self_cpu_seconds: float
    self_device_seconds: float | None
    flops: int | None
    shapes: str = ""


@dataclass(frozen=True)
class OperatorTable:
    """The operators of the traced steps of one rank, the dearest first. ``wall_seconds`` is under the profiler; what
    operators leave of it is Python, the Trainer and waiting."""

    rank: int
    steps: int
    wall_seconds: float
    self_cpu_seconds: float
    self_device_seconds: float | None
    operators: list[OperatorTime]
    left_out: int = 0


@dataclass(frozen=True)
class ProfileAccount:
    """Everything that the deeper instruments left. ``functions`` has a table each for rank 0 and the workers of its
    data loader."""

    instruments: list[InstrumentAccount]
    operators: OperatorTable | None = None
    memory: list[MemorySnapshot] = field(default_factory=list)
    functions: list[FunctionTable] = field(default_factory=list)
    lines: LineTable | None = None
    host_memory: HostMemoryTable | None = None
