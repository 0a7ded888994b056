"""Sums over the events of the torch profiler: operators, kernels, steps.

``torch.profiler.profile.events()`` would build an object of some forty attributes for each of them, about 0.1 ms each
on the training thread; these are read as the profiler's library holds them, and nested here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_efficient.records import OperatorTable, OperatorTime

__all__ = ["OperatorSums"]

_STEP = "ProfilerStep"
_MEMORY = "[memory]"
_NANO = 1e-9


@dataclass
class _Row:
    calls: int = 0
    cpu_ns: int = 0
    device_ns: int = 0
    flops: int = 0


class OperatorSums:
    """Adds up cycles of traced steps."""

    def __init__(self) -> None:
        """Of nothing."""
        self._rows: dict[tuple[str, str], _Row] = {}
        self._device_ns = self._wall_ns = self._steps = 0
        self._has_device = False

    def add(self, events: Iterable[Any]) -> None:
        """One cycle.

        Args:
            events: ``torch._C._autograd._KinetoEvent``: ``profiler.profiler.kineto_results.events()``.
        """
        operators: dict[int, list[Any]] = {}
        kernels: dict[int, int] = {}
        for event in events:
            name = event.name()
            if event.device_type().name != "CPU":
                self._add_kernel(event, kernels)
            elif name.startswith(_STEP):
                self._steps += 1
                self._wall_ns += event.duration_ns()
            elif name != _MEMORY and not event.is_user_annotation() and not event.is_python_function():
                operators.setdefault(event.start_thread_id(), []).append(event)
        for of_thread in operators.values():
            self._add_thread(of_thread, kernels)

    def table(self, rank: int, most: int) -> OperatorTable:
        """The dearest operators.

        Args:
            rank: of this process.
            most: rows that are kept.
        """
        ordered = sorted(self._rows.items(), key=lambda row: (-row[1].device_ns, -row[1].cpu_ns))
        return OperatorTable(
            rank=rank,
            steps=self._steps,
            wall_seconds=self._wall_ns * _NANO,
            self_cpu_seconds=sum(row.cpu_ns for row in self._rows.values()) * _NANO,
            self_device_seconds=self._device_ns * _NANO if self._has_device else None,
            operators=[self._operator(name, shapes, row) for (name, shapes), row in ordered[:most]],
            left_out=max(0, len(ordered) - most),
        )

    def _add_kernel(self, event: Any, kernels: dict[int, int]) -> None:
        if event.is_user_annotation():  # a range of the host's, drawn on the device
            return
        lasted, launched_by = event.duration_ns(), event.linked_correlation_id()
        self._has_device = True
        self._device_ns += lasted
        kernels[launched_by] = kernels.get(launched_by, 0) + lasted

    def _add_thread(self, events: Sequence[Any], kernels: dict[int, int]) -> None:
        """Operators of one thread lie inside one another: what an inner one took is not the outer one's own.

        One that only dispatches to itself, as ``aten::mul`` with a number does, is one call, as in torch's own table.
        """
        held = sorted((event.start_ns(), -event.duration_ns(), place) for place, event in enumerate(events))
        around: list[tuple[int, str, _Row]] = []  # until when, name, sums
        for start, minus_lasted, place in held:
            event, lasted = events[place], -minus_lasted
            name, launched_ns = event.name(), kernels.get(event.correlation_id(), 0)
            while around and around[-1][0] <= start:
                around.pop()
            if around and around[-1][1] == name:
                around[-1][2].device_ns += launched_ns
                continue
            if around:
                around[-1][2].cpu_ns -= lasted
            row = self._rows.setdefault((name, _shapes(event)), _Row())
            row.calls += 1
            row.cpu_ns += lasted
            row.flops += event.flops()
            row.device_ns += launched_ns
            around.append((start + lasted, name, row))

    def _operator(self, name: str, shapes: str, row: _Row) -> OperatorTime:
        device = row.device_ns * _NANO if self._has_device else None
        return OperatorTime(name, row.calls, row.cpu_ns * _NANO, device, row.flops, shapes)


def _shapes(event: Any) -> str:
    return " ".join(str(list(shape)) for shape in event.shapes() if shape)
