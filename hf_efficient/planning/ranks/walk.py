"""The order in which the units of a model run, read from a rehearsal's log."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hf_efficient.planning.ranks.units import Unit, unit_names
from hf_efficient.planning.rehearsed import Rehearsal

_DOING = {"forward": "forward", "backward": "backward", "recompute": "backward", "evaluation": "forward"}


class Walk(ABC):
    """Goes through a log and tells where forwards, backwards and their units begin and end; each told with its event.

    A unit runs from the first allocation in one of its modules to the first in another unit's. In the forward, what the
    root allocates ends it as well; in the backward it does not, where a gradient's own node belongs to no module.
    """

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._log = rehearsal.log
        self._units = unit_names(rehearsal.units, (life.module for life in rehearsal.log.lives))
        self._micro_batches = max(1, len(rehearsal.backward_starts) // 2)
        self._doing = ""
        self._evaluating = False
        self._unit: Unit | None = None
        self._done: set[str] = set()
        self._backwards = 0

    @property
    def is_last_micro_batch(self) -> bool:
        """Of its optimizer step: the backward that runs, or the next one."""
        return (self._backwards - (self._doing == "backward")) % self._micro_batches == self._micro_batches - 1

    def go(self) -> None:
        """From the first event to the last."""
        for event, (index, size) in enumerate(self._log.events):
            if size < 0:
                continue
            life = self._log.lives[index]
            doing = _DOING.get(life.phase, "")
            self._evaluating = life.phase == "evaluation"
            if doing != self._doing:
                self._turn(doing, event)
            if doing:
                self._enter(self._units[life.module], event)
        self._turn("", len(self._log.events))

    def _turn(self, doing: str, event: int) -> None:
        self._leave(event)
        if self._doing == "forward":
            self.forward_ends(event)
        elif self._doing == "backward":
            self.backward_ends(event)
        self._doing = doing
        self._done = set()
        if doing == "forward":
            self.forward_begins(event)
        elif doing == "backward":
            self._backwards += 1
            self.backward_begins(event)

    def _enter(self, unit: Unit | None, event: int) -> None:
        if unit is self._unit or (self._doing == "backward" and (unit is None or unit.name in self._done)):
            return
        self._leave(event)
        self._unit = unit
        if unit is not None:
            (self.before_forward if self._doing == "forward" else self.before_backward)(unit, event)

    def _leave(self, event: int) -> None:
        if self._unit is not None and not (self._doing == "backward" and self._unit.ends_last):
            (self.after_forward if self._doing == "forward" else self.after_backward)(self._unit, event)
            self._done.add(self._unit.name)
        self._unit = None

    @abstractmethod
    def forward_begins(self, event: int) -> None:
        """Of a micro-batch."""

    @abstractmethod
    def before_forward(self, unit: Unit, event: int) -> None:
        """A unit begins to run."""

    @abstractmethod
    def after_forward(self, unit: Unit, event: int) -> None:
        """A unit has run."""

    @abstractmethod
    def forward_ends(self, event: int) -> None:
        """Of a micro-batch."""

    @abstractmethod
    def backward_begins(self, event: int) -> None:
        """Of a micro-batch."""

    @abstractmethod
    def before_backward(self, unit: Unit, event: int) -> None:
        """A unit's backward begins, with its recomputation where its activations were not kept."""

    @abstractmethod
    def after_backward(self, unit: Unit, event: int) -> None:
        """A unit's backward has run."""

    @abstractmethod
    def backward_ends(self, event: int) -> None:
        """Of a micro-batch."""
