"""Memory that a plan foresees, on one device."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.records.planned_timeline import PlannedTimeline

__all__ = ["PlannedMemory", "PlannedTensor"]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor that is there at the peak.

    Attributes:
        bytes: of its storage.
        category: see ``MemoryCategory``.
        module: that allocated it, or whose parameter, gradient or state it is.
        operator: that allocated it; the parameter's name for one that was there from the start.
        shape, dtype: of the tensor.
    """

    bytes: int
    category: str
    module: str
    operator: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class PlannedMemory:
    """Memory of one process on its device.

    Attributes:
        peak_allocated_bytes: tensors, at the worst moment of a step.
        peak_phase: the phase of that moment: forward, recompute (activation checkpointing), backward, optimizer,
            evaluation.
        peak_module: the module that runs then; empty outside the model.
        peak_step: 1 where it is in the first step, 2 where it is in a later one or in an evaluation.
        categories: bytes at the peak by use; they add up to it. With several ranks also ``gathered_weights``, weights
            of others that are there for a moment, and ``communication``, buffers of what is sent.
        category_peak_bytes: bytes of each use at most, each at its own moment, as the run's account tells them.
        largest: the ten largest tensors at the peak, the largest first.
        phase_peak_allocated_bytes: the most that is allocated within each phase.
        model_bytes: weights and adapter, before training.
        paged_bytes: optimizer state that lies outside of torch's allocator and moves between device and host.
        timeline: over the two steps; None where it was not kept.
    """

    peak_allocated_bytes: int
    peak_phase: str
    peak_module: str
    peak_step: int
    categories: dict[str, int]
    category_peak_bytes: dict[str, int]
    largest: list[PlannedTensor]
    phase_peak_allocated_bytes: dict[str, int]
    model_bytes: int
    paged_bytes: int = 0
    timeline: PlannedTimeline | None = None
