"""The CUDA allocator's history: snapshots after chosen steps, at the end, and when memory runs out; by module."""

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hf_efficient.accounting.memory_history import snapshot_record
from hf_efficient.profilers.instrument import NO_CUDA, Instrument, Place
from hf_efficient.recording.activations import is_compiled, tensors_in
from hf_efficient.text import short_seconds

_BACKWARD = " (backward)"
_PEFT = "base_model.model."
_MARK = "hf_efficient.labelled"


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

    def labeller(self) -> Callable[[str], None] | None:
        """Sets what allocations of this thread are labelled with; None where torch cannot (before 2.10)."""
        return getattr(torch._C, "_cuda_setMemoryMetadata", None)


class MemoryHistory(Instrument):
    """Writes ``memory.rank0.step10.pickle``, for https://pytorch.org/memory_viz, and its findings as JSON beside it.
    ``max_entries``: the latest allocations and releases, which are kept; ``modules``: name the module of each."""

    name = "memory"

    def __init__(
        self,
        at_steps: Sequence[int] = (),
        at_end: bool = False,
        on_out_of_memory: bool = True,
        max_entries: int = 100_000,
        modules: bool = True,
        allocator: CudaAllocator | None = None,
    ) -> None:
        super().__init__()
        self._at_steps, self._at_end = frozenset(at_steps), at_end
        self._on_out_of_memory, self._max_entries, self._modules = on_out_of_memory, max_entries, modules
        self._allocator = allocator or CudaAllocator()
        self._place: Place | None = None
        self._labels: ModuleLabels | None = None
        self._observes = False

    def start(self, place: Place) -> None:
        if not self._allocator.is_here():
            self.notes.append(NO_CUDA)
            return
        self._allocator.record(self._max_entries)
        self._place, self.active = place, True
        if self._modules:
            self._name_modules(place.model)
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
            self._leave_modules()
            self._allocator.stop()

    def _name_modules(self, model: nn.Module | None) -> None:
        label = self._allocator.labeller()
        if label is None:
            self.notes.append("modules are known by the stacks alone: this torch cannot label allocations, 2.10 can")
        elif model is None or is_compiled(model):
            self.notes.append("modules are known by the stacks alone: the model is compiled, or not known")
        else:
            self._labels = ModuleLabels(model, label)

    def _leave_modules(self) -> None:
        if self._labels is not None:
            self._labels.close()
            took = f"{short_seconds(self._labels.seconds)} of the host's time in {self._labels.calls:,} calls"
            self.notes.append(f"naming the modules took {took}, which its cost leaves out")
            self._labels = None

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


class _OfThread(threading.local):
    """A backward on a GPU has a thread of its own, and so has the label of torch's allocator."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.below = ""


class ModuleLabels:
    """Labels what an allocator does by the module that runs: hooks on a model's modules and the optimizer's step.
    Forward: the innermost module whose forward runs. Backward: a node of autograd that made a module's result sets its
    name with `` (backward)``. A forward that runs again inside the backward (activation checkpointing) counts as
    itself. (torch's own ``ModuleTracker`` calls nobody when a module changes.)"""

    def __init__(self, model: nn.Module, label: Callable[[str], None]) -> None:
        """Follow a model that is not compiled; ``label`` gets the name in the thread that runs, empty outside."""
        self.calls, self.seconds = 0, 0.0
        self._label = label
        self._of_thread = _OfThread()
        self._hooks: list[Any] = [
            register_optimizer_step_pre_hook(lambda *_: self._outside("optimizer step")),
            register_optimizer_step_post_hook(lambda *_: self._outside("")),
        ]
        for path, module in model.named_modules():
            name = path.removeprefix(_PEFT) or type(model).__name__
            self._hooks.append(module.register_forward_pre_hook(self._enter(name), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._leave(name), always_call=True))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._outside("")

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            began = time.perf_counter()
            stack = self._of_thread.stack
            if stack:
                self._mark((args, kwargs), stack[-1])
            stack.append(name)
            self._label(name)
            self._count(began)

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, result: Any) -> None:
            began = time.perf_counter()
            stack = self._of_thread.stack
            if stack and stack[-1] == name:  # not where another's hook before ours has failed
                stack.pop()
                self._mark(result, name)
                self._label(stack[-1] if stack else self._of_thread.below)
            self._count(began)

        return leave

    def _mark(self, held: Any, name: str) -> None:
        """Let the nodes that made these tensors set a name; the innermost module is the first to do so."""
        for tensor in tensors_in(held):
            node: Any = tensor.grad_fn
            if node is not None and _MARK not in node.metadata:
                node.metadata[_MARK] = name
                node.register_prehook(self._backward(name + _BACKWARD))

    def _backward(self, name: str) -> Callable[..., None]:
        def backward(gradients: Any) -> None:
            began = time.perf_counter()
            self._of_thread.below = name
            if not self._of_thread.stack:
                self._label(name)
            self._count(began)

        return backward

    def _outside(self, name: str) -> None:
        self._of_thread.below = ""
        self._label(name)

    def _count(self, began: float) -> None:
        self.calls += 1
        self.seconds += time.perf_counter() - began
