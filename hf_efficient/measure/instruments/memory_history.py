"""The CUDA allocator's history: snapshots after chosen steps, at the end, and when memory runs out."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hf_efficient.account.memory_snapshot import snapshot_record
from hf_efficient.account.profile_files import table_path, write_table
from hf_efficient.measure.instruments.instrument import Instrument, Place
from hf_efficient.measure.instruments.nvtx import NO_CUDA

__all__ = ["Allocator", "CudaAllocator", "MemoryHistory"]

_ATTACH = "_cuda_attach_out_of_memory_observer"
"""Of ``torch._C``, which has it in a build with CUDA alone."""


class Allocator(Protocol):
    """What the instrument needs of an allocator."""

    def is_here(self) -> bool: ...

    def record(self, max_entries: int) -> None: ...

    def stop(self) -> None: ...

    def snapshot(self) -> dict[str, Any]: ...

    def when_out_of_memory(self, call: Callable[[], None]) -> None: ...

    def retries(self) -> int | None: ...

    def device(self) -> int: ...


class CudaAllocator:
    """torch's, on the current CUDA device."""

    def is_here(self) -> bool:
        """Whether there is a device."""
        return torch.cuda.is_available()

    def record(self, max_entries: int) -> None:
        """Remember the latest allocations and releases, with Python's frames."""
        torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python")

    def stop(self) -> None:
        """Remember no more."""
        torch.cuda.memory._record_memory_history(enabled=None)

    def snapshot(self) -> dict[str, Any]:
        """What is held now, and the history."""
        return torch.cuda.memory._snapshot()

    def when_out_of_memory(self, call: Callable[[], None]) -> None:
        """Call this before the exception is raised; torch has no way to take it back."""
        getattr(torch._C, _ATTACH)(lambda *_: call())

    def retries(self) -> int | None:
        """Times that the cache was freed to allocate."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def device(self) -> int:
        """Index of the current device."""
        return torch.cuda.current_device()


class MemoryHistory(Instrument):
    """Writes ``memory.rank0.step10.pickle``, for https://pytorch.org/memory_viz, and what it says as JSON beside it."""

    name = "memory"

    def __init__(
        self,
        at_steps: Sequence[int] = (),
        at_end: bool = False,
        on_out_of_memory: bool = True,
        max_entries: int = 100_000,
        allocator: Allocator | None = None,
    ) -> None:
        """Nothing is remembered before ``start``.

        Args:
            at_steps: optimizer steps after which a snapshot is written.
            at_end: write one after the last step.
            on_out_of_memory: write one when an allocation fails for good.
            max_entries: allocations and releases that are remembered, the latest.
            allocator: default: that of CUDA.
        """
        super().__init__()
        self._at_steps, self._at_end = frozenset(at_steps), at_end
        self._on_out_of_memory, self._max_entries = on_out_of_memory, max_entries
        self._allocator = allocator or CudaAllocator()
        self._place: Place | None = None
        self._observes = False

    def start(self, place: Place) -> None:
        """Remember from here on."""
        if not self._allocator.is_here():
            self.notes.append(NO_CUDA)
            return
        self._allocator.record(self._max_entries)
        self._place, self.active = place, True
        if self._on_out_of_memory and not self._observes:
            self._observes = True
            self._allocator.when_out_of_memory(self._ran_out)

    def step_ends(self, step: int) -> None:
        """Write, where it is time."""
        if step in self._at_steps:
            self._write(f"step{step}", f"after step {step}")

    def stop(self) -> None:
        """Write the last one, and remember no more."""
        if self._place is None:
            return
        try:
            if self._at_end:
                self._write("end", "at the end")
        finally:
            self._place, self.active = None, False
            self._allocator.stop()

    def _ran_out(self) -> None:
        """Inside the allocator's failure: what goes wrong here must not hide it."""
        try:
            self._write("out_of_memory", "out of memory")
        except Exception as error:  # noqa: BLE001  it is told in the note
            self.notes.append(f"no snapshot at out-of-memory: {type(error).__name__}: {error}")

    def _write(self, name: str, moment: str) -> None:
        if self._place is None:
            return
        snapshot = self._allocator.snapshot()
        path = self._place.directory / f"memory.rank{self._place.rank}.{name}.pickle"
        with path.open("wb") as file:
            pickle.dump(snapshot, file)
        found = snapshot_record(snapshot, moment, self._allocator.device(), self._allocator.retries())
        table = table_path(self._place.directory, "memory", self._place.rank, name)
        write_table(table, found)
        self.files += [written for written in (path, table) if written not in self.files]
