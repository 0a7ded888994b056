"""Every storage that a piece of torch code allocates and frees, in order, and the peak that it comes to.

A ``TorchDispatchMode`` sees each operator's results, blank or real. A storage seen for the first time was allocated by
that operator; a weak reference shows when it dies. Allocations that an operator frees itself are unseen.
"""

import functools
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_efficient.facts.environment import replaced
from hf_efficient.simulate.blank import MOST_REAL, Blank, blank, emptied, grows_large, run_blank, storage_of


@dataclass(slots=True)
class StorageLife:
    """A storage from its allocation to its end, with the tensor, phase and module it was first seen with. Birth and end
    are numbers of events; ``freed_at`` is None while it lives, ``category`` empty until it is known."""

    bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    operator: str
    phase: str
    module: str
    born_at: int
    freed_at: int | None = None
    category: str = ""

    def lives_at(self, event: int) -> bool:
        return self.born_at < event and (self.freed_at is None or self.freed_at > event)


class ModuleNames:
    """Follows a model by hooks, which stay; a backward's node tells by its number which module's forward made it."""

    def __init__(self, model: nn.Module) -> None:
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._names: list[str] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._enter(name))
            module.register_forward_hook(self._leave, always_call=True)

    @property
    def in_forward(self) -> bool:
        """Whether a module's forward runs; inside a backward that is a recomputation."""
        return bool(self._stack)

    def current(self) -> str:
        node = torch._C._current_autograd_node()
        if self._stack or node is None:
            return self._stack[-1] if self._stack else ""
        place = bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._names[place] if place >= 0 else ""

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: object) -> None:
            self._stack.append(name)
            self._note(name)

        return enter

    def _leave(self, module: nn.Module, args: object, result: object) -> None:
        self._stack.pop()
        self._note(self._stack[-1] if self._stack else "")

    def _note(self, name: str) -> None:
        number = torch.autograd._get_sequence_nr()
        if self._numbers and number < self._numbers[-1]:  # the thread's counter, read inside a backward
            return
        self._numbers.append(number)
        self._names.append(name)


class TensorLog(TorchDispatchMode):
    """Logs while it is entered; one thread. ``events``: allocations and frees in order, as (index in ``lives``, bytes;
    negative where freed). ``where``: returns phase and module; called once per allocation. ``decompositions``: by
    operator, its parts, whose allocations are then seen; NotImplemented leaves it whole. ``workspaces``: by operator,
    shapes and dtypes of what it allocates before its results and frees when it returns. ``on_operator``: called with
    every operator, its arguments and results."""

    def __init__(
        self,
        where: Callable[[], tuple[str, str]] = lambda: ("", ""),
        on_operator: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None = None,
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
        workspaces: Mapping[Any, Callable[[Any, Sequence[Any]], Sequence[tuple[tuple[int, ...], torch.dtype]]]]
        | None = None,
    ) -> None:
        super().__init__()
        self.decompositions = decompositions or {}
        self.workspaces = workspaces or {}
        self.lives: list[StorageLife] = []
        self.events: list[tuple[int, int]] = []
        self.where = where
        self.on_operator = on_operator
        self._paused = False
        self._known: dict[int, tuple[int, Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps the method below once more, against its compiler, which never runs in here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        parts = self.decompositions.get(func)
        if parts is not None:
            with self:
                made = parts(*args, **kwargs)
            if made is not NotImplemented:
                return made
        asked = self.workspaces[func](func, args) if func in self.workspaces else ()
        held = [blank(*shape, dtype=dtype) for shape, dtype in asked]
        for workspace in held:
            self._see(workspace, func)
        if (types and any(issubclass(one, Blank) for one in types)) or grows_large(func, args, kwargs):
            out = run_blank(func, args, kwargs)  # without another way through torch's dispatcher
        else:
            out = func(*args, **kwargs)
        if self.on_operator is not None:
            self.on_operator(func, args, kwargs, out)
        if isinstance(out, torch.Tensor):
            if type(out) is torch.Tensor and out.numel() > MOST_REAL:
                out = emptied(out)
            self._see(out, func)
        elif isinstance(out, (tuple, list)):
            for one in out:
                if isinstance(one, torch.Tensor):
                    self._see(one, func)
        del held
        return out

    def paused(self) -> AbstractContextManager[None]:
        return replaced(self, "_paused", True)

    def add(self, tensor: torch.Tensor, name: str, category: str) -> None:
        life = self._see(tensor, name)
        if life is not None:
            life.module, life.category = name, category

    def mark(self, tensor: torch.Tensor, category: str, name: str | None = None) -> None:
        """What a tensor's storage is used for, and whose it is; the first word counts. Nothing for one not seen."""
        known = self._known.get(storage_of(tensor)._cdata)
        if known is None:
            return
        life = self.lives[known[0]]
        if not life.category:
            life.category = category
            life.module = name or life.module

    def _see(self, tensor: torch.Tensor, operator: Any) -> StorageLife | None:
        storage = storage_of(tensor)
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or size == 0:
            return None
        index = len(self.lives)

        def freed(_: object) -> None:
            del self._known[key]
            self.events.append((index, -size))
            self.lives[index].freed_at = len(self.events)

        self._known[key] = (index, weakref.ref(storage, freed))
        phase, module = self.where()
        name = _name(operator)
        life = StorageLife(size, tuple(tensor.shape), tensor.dtype, name, phase, module, len(self.events))
        self.lives.append(life)
        self.events.append((index, size))
        return life


_name = functools.cache(str)  # of an operator


@dataclass(frozen=True)
class Peak:
    """The moment at which most is allocated: after ``event`` allocations and frees, the last of them of ``life``."""

    bytes: int
    event: int
    life: StorageLife


def find_peak(log: TensorLog) -> Peak:
    """Of a log with an event at least."""
    live = list(accumulate(size for _, size in log.events))
    at = live.index(max(live))
    return Peak(live[at], at + 1, log.lives[log.events[at][0]])


def phase_peaks(log: TensorLog) -> dict[str, int]:
    """Bytes allocated at most within each phase, by the phase of the allocation that reached it."""
    found: dict[str, int] = {}
    for (index, size), live in zip(log.events, accumulate(size for _, size in log.events), strict=True):
        if size > 0:
            phase = log.lives[index].phase
            found[phase] = max(found.get(phase, 0), live)
    return found


def category_peaks(log: TensorLog, category: Callable[[StorageLife], str]) -> dict[str, int]:
    """Bytes of each category at most, each at its own moment: they may add up to more than the peak."""
    of = [category(life) for life in log.lives]
    live: dict[str, int] = {}
    most: dict[str, int] = {}
    for index, size in log.events:
        name = of[index]
        held = live[name] = live.get(name, 0) + size
        if held > most.get(name, 0):
            most[name] = held
    return most


def category_of(life: StorageLife, backward_starts: Sequence[int], vocabulary: int) -> str:
    """What a storage is used for, in the words of ``MemoryCategory``. As wide as the vocabulary: ``logits``, gradient
    and copies included. Left by a forward for the backward: ``activations``. All else: ``rest``."""
    if life.category:
        return life.category
    if len(life.shape) > 1 and life.shape[-1] == vocabulary:
        return "logits"
    kept = life.phase == "recompute"
    if life.phase == "forward":
        place = bisect_left(backward_starts, life.born_at)
        kept = place < len(backward_starts) and (life.freed_at is None or life.freed_at > backward_starts[place])
    return "activations" if kept else "rest"


@dataclass(frozen=True)
class Moment:
    """What is allocated after so many events, in bytes by use; absent ones are 0."""

    event: int
    phase: str
    categories: dict[str, int]


def timeline(log: TensorLog, category: Callable[[StorageLife], str], start: int = 0, most: int = 400) -> list[Moment]:
    """At most so many moments: of each stretch of as many events the one with the most allocated, with the peak."""
    of = [category(life) for life in log.lives]
    live: dict[str, int] = {}
    for index, size in log.events[:start]:
        live[of[index]] = live.get(of[index], 0) + size
    width = max(1, -(-(len(log.events) - start) // most))
    moments: list[Moment] = []
    total, phase = sum(live.values()), ""
    for place, (index, size) in enumerate(log.events[start:]):
        live[of[index]] = live.get(of[index], 0) + size
        total += size
        phase = log.lives[index].phase if size > 0 else phase
        if place % width == 0:
            highest = total
            moments.append(Moment(start + place + 1, phase, dict(live)))
        elif total > highest:
            highest = total
            moments[-1] = Moment(start + place + 1, phase, dict(live))
    return moments
