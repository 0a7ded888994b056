"""Every storage that a piece of torch code allocates and frees, in order.

The code runs on blank tensors (``blank.py``), real ones, or both; nothing in it has to know. A ``TorchDispatchMode``
sees each operator's results. A storage that it sees for the first time was allocated by that operator; a weak reference
tells when it dies. What an operator allocates and frees inside itself it does not see.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_efficient.simulate.blank import Blank, emptied, run_blank
from hf_efficient.simulate.large_results import MOST_REAL, grows_large
from hf_efficient.simulate.storage_life import StorageLife


class TensorLog(TorchDispatchMode):
    """Logs while it is entered; one thread.

    Attributes:
        lives: every storage seen, in the order of allocation.
        events: allocations and frees in order, as (index in ``lives``, bytes; negative where freed).
        live_bytes: allocated and not freed.
        where: tells the phase and the module that run; is asked once per allocation.
        decompositions: by operator, what stands for it: what it allocates inside itself is then seen. One that returns
            NotImplemented leaves these arguments to the operator itself.
        on_operator: is told every operator and its arguments and results, for whoever counts work.
    """

    def __init__(
        self,
        where: Callable[[], tuple[str, str]] = lambda: ("", ""),
        on_operator: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None = None,
        decompositions: Mapping[Any, Callable[..., Any]] | None = None,
    ) -> None:
        super().__init__()
        self.decompositions = decompositions or {}
        self.lives: list[StorageLife] = []
        self.events: list[tuple[int, int]] = []
        self.live_bytes = 0
        self.where = where
        self.on_operator = on_operator
        self._paused = False
        self._known: dict[int, tuple[int, Any]] = {}
        self._operators: dict[Any, str] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps the method below once more, against its compiler, which never runs in here."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and log what it allocated."""
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        parts = self.decompositions.get(func)
        if parts is not None:
            with self:
                told = parts(*args, **kwargs)
            if told is not NotImplemented:
                return told
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
        return out

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within, everything runs as it would without the log, and none of it is logged."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def add(self, tensor: torch.Tensor, name: str, category: str) -> None:
        """A tensor that is there before anything runs."""
        life = self._see(tensor, name)
        if life is not None:
            life.module, life.category = name, category

    def mark(self, tensor: torch.Tensor, category: str, name: str | None = None) -> None:
        """What a tensor's storage is used for, and whose it is; the first word counts. Nothing for one not seen."""
        known = self._known.get(_storage(tensor)._cdata)
        if known is None:
            return
        life = self.lives[known[0]]
        if not life.category:
            life.category = category
            life.module = name or life.module

    def life_of(self, tensor: torch.Tensor) -> StorageLife | None:
        """Of a tensor's storage; None for one not seen."""
        known = self._known.get(_storage(tensor)._cdata)
        return None if known is None else self.lives[known[0]]

    def _see(self, tensor: torch.Tensor, operator: Any) -> StorageLife | None:
        storage = _storage(tensor)
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or size == 0:
            return None
        index = len(self.lives)

        def freed(_: object) -> None:
            del self._known[key]
            self.events.append((index, -size))
            self.live_bytes -= size
            self.lives[index].freed_at = len(self.events)

        self._known[key] = (index, weakref.ref(storage, freed))
        phase, module = self.where()
        name = self._operators.get(operator)
        if name is None:
            name = self._operators[operator] = str(operator)
        life = StorageLife(size, tuple(tensor.shape), tensor.dtype, name, phase, module, len(self.events))
        self.lives.append(life)
        self.events.append((index, size))
        self.live_bytes += size
        return life


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return (tensor.shell if isinstance(tensor, Blank) else tensor).untyped_storage()
