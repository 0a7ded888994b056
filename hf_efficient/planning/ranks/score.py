"""A log of allocations with some of them resized, cut short or added."""

from __future__ import annotations

from collections import defaultdict
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from hf_efficient.planning.rehearsed import Rehearsal
from hf_efficient.simulate.storage_life import StorageLife
from hf_efficient.simulate.tensor_log import TensorLog

_DTYPES = {2: torch.bfloat16, 4: torch.float32}


class Score:
    """Takes changes of a rehearsal's log, and writes it anew.

    Events are counted as in the old log. Changes at the same event happen in the order in which they were asked for,
    before the event itself.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._sizes: dict[int, int] = {}
        self._before: dict[int, list[tuple[int, bool]]] = defaultdict(list)
        self._added: list[StorageLife] = []

    def resize(self, index: int, size: int) -> None:
        """An old storage takes so many bytes; none at all with 0."""
        self._sizes[index] = size

    def cut(self, index: int, event: int) -> None:
        """An old storage ends before an event, if it lives so long."""
        self._before[event].append((index, False))

    def add(self, event: int, size: int, category: str, name: str, phase: str, itemsize: int = 1) -> int:
        """A new flat storage before an event; returns what names it in ``end``. 0 bytes are not there.

        Args:
            event: that it comes before.
            size: bytes.
            category: what it is used for.
            name: whose it is.
            phase: that allocates it.
            itemsize: bytes of an element.
        """
        shape, dtype = (size // max(1, itemsize),), _DTYPES.get(itemsize, torch.uint8)
        life = StorageLife(size, shape, dtype, category, phase, name, 0, category=category)
        self._added.append(life)
        number = -len(self._added)
        if size:
            self._before[event].append((number, True))
        return number

    def end(self, number: int, event: int) -> None:
        """A new storage ends before an event."""
        self._before[event].append((number, False))

    def written(self) -> Rehearsal:
        """The rehearsal with the new log, its boundaries moved along."""
        old, new = self._rehearsal.log, _NewLog()
        counts: list[int] = []
        for event, (index, size) in enumerate(old.events):
            counts.append(len(new.log.events))
            self._changes(new, event)
            if size > 0:
                new.start(index, old.lives[index], self._sizes.get(index, size))
            else:
                new.end(index)
        counts.append(len(new.log.events))
        self._changes(new, len(old.events))
        return _moved(self._rehearsal, new.log, counts)

    def _changes(self, new: _NewLog, event: int) -> None:
        for number, starts in self._before.get(event, ()):
            if starts:
                life = self._added[-number - 1]
                new.start(number, life, life.bytes)
            else:
                new.end(number)


class _NewLog:
    """Writes a log; what has no bytes is not in it."""

    def __init__(self) -> None:
        self.log = TensorLog()
        self._there: dict[int, int] = {}

    def start(self, key: int, life: StorageLife, size: int) -> None:
        if size == 0:
            return
        self._there[key] = len(self.log.lives)
        begun = copy(life)
        begun.bytes, begun.born_at, begun.freed_at = size, len(self.log.events), None
        self.log.lives.append(begun)
        self._note(self._there[key], size)

    def end(self, key: int) -> None:
        index = self._there.pop(key, None)
        if index is None:
            return
        life = self.log.lives[index]
        self._note(index, -life.bytes)
        life.freed_at = len(self.log.events)

    def _note(self, index: int, size: int) -> None:
        self.log.events.append((index, size))
        self.log.live_bytes += size


def _moved(rehearsal: Rehearsal, log: TensorLog, counts: list[int]) -> Rehearsal:
    moved: dict[str, Any] = {
        "backward_starts": tuple(counts[one] for one in rehearsal.backward_starts),
        "forward_ends": tuple(counts[one] for one in rehearsal.forward_ends),
        "first_step": counts[rehearsal.first_step],
        "second_step": counts[rehearsal.second_step],
    }
    if rehearsal.evaluation is not None:
        moved["evaluation"] = replace(rehearsal.evaluation, start=counts[rehearsal.evaluation.start])
    return replace(rehearsal, log=log, **moved)
