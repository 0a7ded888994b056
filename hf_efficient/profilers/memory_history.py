"""The CUDA allocator's history: snapshots after chosen steps, at the end, and when memory runs out."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hf_efficient.accounting.memory_history import snapshot_record
from hf_efficient.profilers.instrument import NO_CUDA, Instrument, Place


class CudaAllocator:
    def is_here(self) -> bool:
        return torch.cuda.is_available()

    def record(self, max_entries: int) -> None:
        torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python")

    def stop(self) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)

    def snapshot(self) -> dict[str, Any]:
        return torch.cuda.memory._snapshot()

    def when_out_of_memory(self, call: Callable[[], None]) -> None:
        """Call this before the exception is raised; torch has no way to take it back."""
        getattr(torch._C, "_cuda_attach_out_of_memory_observer")(lambda *_: call())  # noqa: B009  in CUDA builds alone

    def retries(self) -> int | None:
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def device(self) -> int:
        return torch.cuda.current_device()


class MemoryHistory(Instrument):
    """Writes ``memory.rank0.step10.pickle``, for https://pytorch.org/memory_viz, and its findings as JSON beside it.
    ``max_entries``: the latest allocations and releases, which are kept."""

    name = "memory"

    def __init__(
        self,
        at_steps: Sequence[int] = (),
        at_end: bool = False,
        on_out_of_memory: bool = True,
        max_entries: int = 100_000,
        allocator: CudaAllocator | None = None,
    ) -> None:
        super().__init__()
        self._at_steps, self._at_end = frozenset(at_steps), at_end
        self._on_out_of_memory, self._max_entries = on_out_of_memory, max_entries
        self._allocator = allocator or CudaAllocator()
        self._place: Place | None = None
        self._observes = False

    def start(self, place: Place) -> None:
        if not self._allocator.is_here():
            self.notes.append(NO_CUDA)
            return
        self._allocator.record(self._max_entries)
        self._place, self.active = place, True
        if self._on_out_of_memory and not self._observes:
            self._observes = True
            self._allocator.when_out_of_memory(self._ran_out)

    def step_ends(self, step: int) -> None:
        if step in self._at_steps:
            self._write_snapshot(f"step{step}", f"after step {step}")

    def stop(self) -> None:
        if self._place is None:
            return
        try:
            if self._at_end:
                self._write_snapshot("end", "at the end")
        finally:
            self._place, self.active = None, False
            self._allocator.stop()

    def _ran_out(self) -> None:
        """Inside the allocator's failure: what goes wrong here must not hide it."""
        try:
            self._write_snapshot("out_of_memory", "out of memory")
        except Exception as error:  # noqa: BLE001  it is in the note
            self.notes.append(f"no snapshot at out-of-memory: {type(error).__name__}: {error}")

    def _write_snapshot(self, name: str, moment: str) -> None:
        if self._place is None:
            return
        snapshot = self._allocator.snapshot()
        path = self._place.directory / f"memory.rank{self._place.rank}.{name}.pickle"
        with path.open("wb") as file:
            pickle.dump(snapshot, file)
        if path not in self.files:
            self.files.append(path)
        found = snapshot_record(snapshot, moment, self._allocator.device(), self._allocator.retries())
        self.write(self._place, "memory", found, name)
