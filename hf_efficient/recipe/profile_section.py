"""``efficiency.profile:``, the deeper instruments of a run; all of them are off by default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from hf_efficient.recipe.section import Section

__all__ = [
    "CaptureSection",
    "MemoryHistorySection",
    "ProfileSection",
    "PythonProfileSection",
    "SynchronisationsSection",
    "TraceSection",
]

NonNegativeInt = Annotated[int, Field(ge=0)]


class TraceSection(Section):
    """The torch profiler: which optimizer steps it sees, and how much of each operator."""

    wait: NonNegativeInt = Field(5, description="Optimizer steps that go by before each cycle.")
    warmup: NonNegativeInt = Field(1, description="Steps that are traced and thrown away: the first ones are slower.")
    active: PositiveInt = Field(3, description="Steps that are kept, in one trace per rank and cycle.")
    repeat: PositiveInt = Field(1, description="How many cycles of wait, warmup and active.")
    shapes: bool = Field(True, description="Shapes of the operators' inputs.")
    stacks: bool = Field(True, description="Python's calls, with file and line; the dearest of these.")
    memory: bool = Field(False, description="Every allocation.")
    flops: bool = Field(True, description="FLOPs of the matrix products and convolutions; needs shapes.")


class MemoryHistorySection(Section):
    """What torch's CUDA allocator did, and for which line of code; needs a CUDA device."""

    at_steps: list[PositiveInt] = Field(
        default_factory=list, description="Write a snapshot after each of these optimizer steps."
    )
    at_end: bool = Field(False, description="Write one after the last step.")
    on_out_of_memory: bool = Field(True, description="Write one when an allocation fails.")
    max_entries: PositiveInt = Field(100_000, description="Allocations and releases that are remembered, the latest.")
    modules: bool = Field(
        True, description="Name the module that each allocation is for, by hooks on all of them; needs torch 2.10."
    )


class PythonProfileSection(Section):
    """Where Python's own time goes."""

    tool: Literal["cprofile", "pyinstrument"] = Field(
        "cprofile", description="cprofile counts every call; pyinstrument samples, and costs less."
    )
    after_step: NonNegativeInt = Field(
        4, description="Begin after so many optimizer steps; the cost is told by comparison with them."
    )
    workers: bool = Field(True, description="Profile the data loader's workers as well, from their start.")


class CaptureSection(Section):
    """Which steps a profiler from outside sees: cudaProfilerStart and cudaProfilerStop around them."""

    after_step: NonNegativeInt = Field(5, description="Optimizer steps that go by before.")
    steps: PositiveInt = Field(3, description="Steps that are captured.")


class SynchronisationsSection(Section):
    """Where the host reads tensors, and so waits for the device: lines of code, counted over some steps."""

    after_step: NonNegativeInt = Field(3, description="Optimizer steps that go by before.")
    steps: PositiveInt = Field(2, description="Steps that are counted.")


class ProfileSection(Section):
    """Deeper instruments: each costs something, says how much, and writes to OUTPUT_DIR/efficiency/profile."""

    trace: TraceSection | None = Field(
        None, description="Trace some steps by the torch profiler; `{}`: with its defaults."
    )
    memory: MemoryHistorySection | None = Field(
        None, description="History of the CUDA allocator, in snapshots; `{}`: at out-of-memory alone."
    )
    python: PythonProfileSection | None = Field(
        None, description="Profile Python's functions, by cProfile; `{tool: pyinstrument}`: by samples."
    )
    lines: list[str] = Field(
        default_factory=list, description="Functions timed line by line, as package.module:function or :Class.method."
    )
    host_memory: list[str] = Field(
        default_factory=list, description="Functions whose lines' host memory is told at its peak, named the same way."
    )
    nvtx: bool = Field(False, description="Name steps and phases for Nsight, as NVTX ranges; needs a CUDA device.")
    capture: CaptureSection | None = Field(
        None, description="Bound what Nsight captures to some steps; `hf-efficient train --nsys` and --ncu set it."
    )
    synchronisations: SynchronisationsSection | None = Field(
        None, description="Count by file and line where the host reads tensors; `{}`: in the fourth and fifth step."
    )
