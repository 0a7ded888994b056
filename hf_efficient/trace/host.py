"""What the host's threads did: operators, and what was around them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.nest import Nest, nest
from hf_efficient.trace.table import EventTable, Ints

__all__ = ["HostWork"]

_OPTIMIZER = "Optimizer.step#"


@dataclass(frozen=True)
class HostWork:
    """The host's side of a trace; trees are built when they are first asked for."""

    events: EventTable

    @cached_property
    def work(self) -> Nest:
        """Operators, annotations and calls of the runtime."""
        return nest(self.events, Kind.OPERATOR, Kind.ANNOTATION, Kind.CALL)

    @cached_property
    def functions(self) -> Nest:
        """Python functions."""
        return nest(self.events, Kind.PYTHON)

    @cached_property
    def everything(self) -> Nest:
        """Both in one tree."""
        if not len(self.functions):
            return self.work
        return nest(self.events, Kind.OPERATOR, Kind.ANNOTATION, Kind.CALL, Kind.PYTHON)

    @cached_property
    def operator(self) -> Ints:
        """Of each node of ``work`` the row of the innermost operator around it, itself among them; -1: none."""
        rows = self.work.rows
        return self.work.inherited(np.where(self.events.kind[rows] == Kind.OPERATOR, rows, -1))

    @cached_property
    def in_optimizer(self) -> Ints:
        """Of each node of ``work`` whether it lies in an optimizer's step: the row of that, -1: it does not."""
        names = [number for number, name in enumerate(self.events.names) if name.startswith(_OPTIMIZER)]
        rows = self.work.rows
        return self.work.inherited(np.where(np.isin(self.events.name[rows], names), rows, -1))

    def around(self, calls: Ints, values: Ints) -> Ints:
        """A value of ``work`` for each of these rows of calls; -1 for a row of -1.

        Args:
            calls: rows of calls of the runtime.
            values: of each node of ``work``.
        """
        found = np.full(len(calls), -1)
        known = calls >= 0
        found[known] = values[self.work.nodes(calls[known])]
        return found
