"""A simulation's log rewritten for one rank, and the order in which the units of the model run in it."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from hf_efficient.planning.simulation import Simulation, Unit, unit_names
from hf_efficient.simulate.tensor_log import StorageLife, TensorLog

_DTYPES = {2: torch.bfloat16, 4: torch.float32}
_DOING = {"forward": "forward", "backward": "backward", "recompute": "backward", "evaluation": "forward"}


class Score:
    """Takes changes of a simulation's log (storages resized, cut short or added), and writes it anew. Events are
    counted as in the old log; changes at the same event happen before it, in the order asked for."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._sizes: dict[int, tuple[int, int | None]] = {}
        self._before: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self._added: list[StorageLife] = []

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
        """A storage ends before an event: a new one, or an old one by its index, if it lives so long."""
        if number is not None:
            self._before[event].append((number, False))

    def written(self) -> Simulation:
        old, new = self._simulation.log, _NewLog()
        counts: list[int] = []
        for event, (index, size) in enumerate(old.events):
            counts.append(len(new.log.events))
            self._changes(new, event)
            if size > 0:
                new.start(index, old.lives[index], *self._sizes.get(index, (size, None)))
            else:
                new.end(index)
        counts.append(len(new.log.events))
        self._changes(new, len(old.events))
        return _moved(self._simulation, new.log, counts)

    def _changes(self, new: _NewLog, event: int) -> None:
        for number, starts in self._before.get(event, ()):
            if starts:
                life = self._added[-number - 1]
                new.start(number, life, life.bytes)
            else:
                new.end(number)


class _NewLog:
    def __init__(self) -> None:
        self.log = TensorLog()
        self._there: dict[int, int] = {}

    def start(self, key: int, life: StorageLife, size: int, itemsize: int | None = None) -> None:
        if size == 0:
            return
        self._there[key] = len(self.log.lives)
        begun = copy(life)
        begun.bytes, begun.born_at, begun.freed_at = size, len(self.log.events), None
        if itemsize is not None and itemsize != life.dtype.itemsize:
            begun.dtype = _DTYPES.get(itemsize, life.dtype)
        self.log.lives.append(begun)
        self._note(self._there[key], size)

    def end(self, key: int) -> None:
        index = self._there.pop(key, None)
        if index is not None:
            life = self.log.lives[index]
            self._note(index, -life.bytes)
            life.freed_at = len(self.log.events)

    def _note(self, index: int, size: int) -> None:
        self.log.events.append((index, size))
        self.log.live_bytes += size


def _moved(simulation: Simulation, log: TensorLog, counts: list[int]) -> Simulation:
    moved: dict[str, Any] = {
        "backward_starts": tuple(counts[one] for one in simulation.backward_starts),
        "forward_ends": tuple(counts[one] for one in simulation.forward_ends),
        "first_step": counts[simulation.first_step],
        "second_step": counts[simulation.second_step],
    }
    if simulation.evaluation is not None:
        moved["evaluation"] = replace(simulation.evaluation, start=counts[simulation.evaluation.start])
    return replace(simulation, log=log, **moved)


class Walk:
    """Goes through a log and calls the methods below where forwards and backwards (``doing``) and their units begin and
    end. A unit runs from the first allocation in its modules to the first in another's; in the forward, the root's
    ends it too."""

    def __init__(self, simulation: Simulation) -> None:
        self.doing = ""
        self._log = simulation.log
        self._units = unit_names(simulation.units, (life.module for life in simulation.log.lives))
        self._micro_batches = max(1, len(simulation.backward_starts) // 2)
        self._evaluating = False
        self._unit: Unit | None = None
        self._done: set[str] = set()
        self._backwards = 0

    @property
    def is_last_micro_batch(self) -> bool:
        """Of its optimizer step: the backward that runs, or the next one."""
        return (self._backwards - (self.doing == "backward")) % self._micro_batches == self._micro_batches - 1

    def go(self) -> None:
        for event, (index, size) in enumerate(self._log.events):
            if size < 0:
                continue
            life = self._log.lives[index]
            doing = _DOING.get(life.phase, "")
            self._evaluating = life.phase == "evaluation"
            if doing != self.doing:
                self._turn(doing, event)
            if doing:
                self._enter(self._units[life.module], event)
        self._turn("", len(self._log.events))

    def _turn(self, doing: str, event: int) -> None:
        self._leave(event)
        if self.doing:
            self.ends(event)
        self.doing, self._done = doing, set()
        if doing:
            self._backwards += doing == "backward"
            self.begins(event)

    def _enter(self, unit: Unit | None, event: int) -> None:
        if unit is self._unit or (self.doing == "backward" and (unit is None or unit.name in self._done)):
            return
        self._leave(event)
        self._unit = unit
        if unit is not None:
            self.before(unit, event)

    def _leave(self, event: int) -> None:
        if self._unit is not None and not (self.doing == "backward" and self._unit.ends_last):
            self.after(self._unit, event)
            self._done.add(self._unit.name)
        self._unit = None

    def begins(self, event: int) -> None:
        raise NotImplementedError

    def ends(self, event: int) -> None:
        raise NotImplementedError

    def before(self, unit: Unit, event: int) -> None:
        """Of a unit's backward, with its recomputation where its activations were not kept."""
        raise NotImplementedError

    def after(self, unit: Unit, event: int) -> None:
        raise NotImplementedError
