"""A simulation's log rewritten for one rank."""

from collections import defaultdict
from copy import copy
from dataclasses import replace

import torch

from hf_efficient.planning.simulation import Simulation
from hf_efficient.simulate.tensor_log import StorageLife, TensorLog

_DTYPES = {2: torch.bfloat16, 4: torch.float32}


class Score:
    """Takes changes of a simulation's log (storages resized, cut short or added), and writes it anew. Events are
    counted as in the old log; changes at the same event happen before it, in the order asked for."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._sizes: dict[int, tuple[int, int | None]] = {}
        self._before: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self._added: list[StorageLife] = []
        self._log = TensorLog()
        self._there: dict[int, int] = {}

    def resize(self, index: int, size: int, itemsize: int | None = None) -> None:
        """An old storage takes so many bytes, none at all with 0; an element of it so many, if not as before."""
        self._sizes[index] = (size, itemsize)

    def add(self, event: int, size: int, category: str, name: str, phase: str, itemsize: int = 1) -> int:
        """A new flat storage before an event; returns what names it in ``end``. 0 bytes are not there."""
        shape, dtype = (size // max(1, itemsize),), _DTYPES.get(itemsize, torch.uint8)
        self._added.append(StorageLife(size, shape, dtype, category, phase, name, 0, category=category))
        number = -len(self._added)
        if size:
            self._before[event].append((number, True))
        return number

    def end(self, number: int | None, event: int) -> None:
        """A storage ends before an event, if it lives so long: a new one, or an old one by its index."""
        if number is not None:
            self._before[event].append((number, False))

    def written(self) -> Simulation:
        held, counts = self._simulation, list[int]()
        for event, (index, size) in enumerate(held.log.events):
            counts.append(len(self._log.events))
            self._changes(event)
            if size > 0:
                self._start(index, held.log.lives[index], *self._sizes.get(index, (size, None)))
            else:
                self._end(index)
        counts.append(len(self._log.events))
        self._changes(len(held.log.events))
        evaluation = held.evaluation
        return replace(
            held,
            log=self._log,
            backward_starts=tuple(counts[one] for one in held.backward_starts),
            forward_ends=tuple(counts[one] for one in held.forward_ends),
            first_step=counts[held.first_step],
            second_step=counts[held.second_step],
            evaluation=None if evaluation is None else replace(evaluation, start=counts[evaluation.start]),
        )

    def _changes(self, event: int) -> None:
        for number, starts in self._before.get(event, ()):
            if starts:
                life = self._added[-number - 1]
                self._start(number, life, life.bytes)
            else:
                self._end(number)

    def _start(self, key: int, life: StorageLife, size: int, itemsize: int | None = None) -> None:
        if size == 0:
            return
        self._there[key] = len(self._log.lives)
        begun = copy(life)
        begun.bytes, begun.born_at, begun.freed_at = size, len(self._log.events), None
        if itemsize is not None and itemsize != life.dtype.itemsize:
            begun.dtype = _DTYPES.get(itemsize, life.dtype)
        self._log.lives.append(begun)
        self._log.events.append((self._there[key], size))

    def _end(self, key: int) -> None:
        index = self._there.pop(key, None)
        if index is not None:
            life = self._log.lives[index]
            self._log.events.append((index, -life.bytes))
            life.freed_at = len(self._log.events)
