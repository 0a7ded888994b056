"""The event log of a process: where its time goes, appended as it happens, decided afterwards by a pure fold.

    enter, leave   a phase; the time of an inner phase is not counted for the outer one
    mark           from here on the time belongs to a phase of the loop, until another mark; what is entered lies inside
    cut            an optimizer step ends here; without one, the loop ends in a step that is never done
    loop           the training loop begins or ends
    gap            names the time since the last phase outside the loop
    line           a record of another kind, to be written in this place

Inside an *opaque* phase no others are separated: the forward of an evaluation stays evaluation. Only the waits for
other ranks are counted, beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hf_efficient.recording.guard import guard
from hf_efficient.records.steps import PhaseName

Event = tuple[str, int, Any, Any]
"""Kind, reading of the clock in nanoseconds, and two values that depend on the kind (see ``Fold``)."""

_WAIT = "communication"
_HOST_ALONE = frozenset({"bookkeeping", "device_wait", _WAIT})
"""Phases that are no work of the device, and are not marked on it."""

_guarded = guard("Times and steps are no longer recorded")


@dataclass
class Span:
    """The time between two readings of the clock; what is missing in the phases was spent in none."""

    start_ns: int
    end_ns: int
    phase_ns: dict[str, int]
    waits_ns: dict[str, int] = field(default_factory=dict)
    """Communication inside opaque phases, by the phase around it."""
    step: Any = None
    """The ``StepDraft`` of the step that ends here; None outside the training loop."""
    open_phase: str | None = None
    """Of a span under way."""


class Fold:
    """Decides where the time went; knows no clock, no thread and no file."""

    def __init__(self, start_ns: int) -> None:
        self.since_ns = start_ns
        """The last event; what came after it is not charged yet."""
        self.start_ns = start_ns
        """Of the span under way."""
        self._held: dict[str, int] = {}
        self._waits: dict[str, int] = {}
        self._wait: tuple[int, int] | None = None
        self._stack: list[tuple[int, str]] = []
        self._opaque = 0
        self._marked: str | None = None
        self._gap: str | None = None
        self._in_loop = False
        self._out: list[Span | Mapping[str, Any]] = []

    def take(self, events: Iterable[Event]) -> list[Span | Mapping[str, Any]]:
        for kind, at_ns, what, more in events:
            getattr(self, f"_on_{kind}")(max(at_ns, self.since_ns), what, more)
        out, self._out = self._out, []
        return out

    def so_far(self, now_ns: int) -> Span:
        held, phase = dict(self._held), self._stack[-1][1] if self._stack else self._marked
        if phase is not None:
            held[phase] = held.get(phase, 0) + max(0, now_ns - self.since_ns)
        return Span(self.start_ns, max(now_ns, self.since_ns), held, dict(self._waits), open_phase=phase)

    def _on_enter(self, at_ns: int, name: str, token_and_opaque: tuple[int, bool]) -> None:
        token, opaque = token_and_opaque
        if self._opaque:  # a wait inside an opaque phase
            self._wait = self._wait or (token, at_ns)
            return
        if not self._stack and not self._in_loop:
            self._end_gap(at_ns, self._gap)
        self._charge(at_ns)
        self._stack.append((token, name))
        if opaque:
            self._opaque = token

    def _on_leave(self, at_ns: int, token: int, _: Any) -> None:
        """Also what an exception left open inside it."""
        if self._wait is not None and self._wait[0] == token:
            self._end_wait(at_ns)
        depth = next((i for i, (known, _) in enumerate(self._stack) if known == token), None)
        if depth is None:
            return
        self._charge(at_ns)
        if 0 < token <= self._opaque:
            self._end_wait(at_ns)
            self._opaque = 0
        del self._stack[depth:]
        if not self._stack and not self._in_loop:
            self._end_span(at_ns)

    def _on_mark(self, at_ns: int, phase: str | None, _: Any) -> None:
        self._charge(at_ns)
        self._marked = phase

    def _on_cut(self, at_ns: int, step: Any, _: Any) -> None:
        self._charge(at_ns)
        self._end_span(at_ns, step)

    def _on_loop(self, at_ns: int, begins: bool, _: Any) -> None:
        self._charge(at_ns)
        if self._in_loop:  # what is left behind the last step is no step's
            self._held = {}
        self._end_span(at_ns)
        self._in_loop = begins

    def _on_gap(self, at_ns: int, past: str | None, future: str | None) -> None:
        if not self._stack and not self._in_loop:
            self._end_gap(at_ns, past)
        self._gap = future

    def _on_line(self, at_ns: int, record: Mapping[str, Any], _: Any) -> None:
        self._out.append(record)

    def _charge(self, at_ns: int) -> None:
        phase = self._stack[-1][1] if self._stack else self._marked
        if phase is not None:
            self._held[phase] = self._held.get(phase, 0) + at_ns - self.since_ns
        self.since_ns = at_ns

    def _end_wait(self, at_ns: int) -> None:
        if self._wait is not None:
            around = next(name for token, name in self._stack if token == self._opaque)
            self._waits[around] = self._waits.get(around, 0) + at_ns - self._wait[1]
            self._wait = None

    def _end_gap(self, at_ns: int, name: str | None) -> None:
        self._held = {} if name is None else {name: at_ns - self.start_ns}
        self._end_span(at_ns)

    def _end_span(self, at_ns: int, step: Any = None) -> None:
        if step is not None or (self._held and at_ns > self.start_ns):
            self._out.append(Span(self.start_ns, at_ns, self._held, self._waits, step))
        self.start_ns = self.since_ns = at_ns
        self._held, self._waits, self._wait, self._marked, self._opaque = {}, {}, None, None, 0
        self._stack.clear()


_range_marker: Any = None


def mark_phases(marker: Any) -> None:
    """Loops that begin from here on open ranges of this thread on it, as on ``torch.cuda.nvtx``; None: they do not."""
    global _range_marker
    _range_marker = marker


class _Ranges:
    """The ranges of one loop. What is marked lies around all others: its range changes while none of them is open."""

    def __init__(self, marker: Any) -> None:
        self._marker = marker
        self._open: list[int] = []
        self._wanted: str | None = None
        self._shown: str | None = None

    def enter(self, name: str, token: int) -> None:
        self._marker.range_push(name)
        self._open.append(token)

    def leave(self, token: int) -> None:
        while self._open and self._open[-1] >= token:
            self._open.pop()
            self._marker.range_pop()
        self._follow()

    def mark(self, phase: str | None) -> None:
        self._wanted = phase
        self._follow()

    def cut(self) -> None:
        self._wanted = None
        self.leave(0)

    def _follow(self) -> None:
        if self._open or self._wanted == self._shown:
            return
        if self._shown is not None:
            self._marker.range_pop()
        if self._wanted is not None:
            self._marker.range_push(self._wanted)
        self._shown = self._wanted


class EventLog:
    """Appends the training thread's events; no method raises or waits. Another thread may call ``swap``."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.broken = False
        self.in_loop = False
        self.marked: PhaseName | None = None
        """What was marked last in this step."""
        self.outermost = 0
        """Token of the phase in which all others lie; 0 outside all phases."""
        self.on_edge: Callable[[bool], None] = lambda opens: None
        """Called where an outermost phase opens and closes outside the loop."""
        self._events: list[Event] = []
        self._last_token = self._opaque = 0
        self._device: Any = None
        self._on_device: str | None = None
        self._ranges: _Ranges | None = None

    def swap(self) -> list[Event]:
        found = self._events[: len(self._events)]
        del self._events[: len(found)]
        return found

    @contextmanager
    def phase(self, name: PhaseName, *, opaque: bool = False) -> Iterator[None]:
        token = self.enter(name, opaque=opaque)
        try:
            yield
        finally:
            self.leave(token, name if name not in _HOST_ALONE else None)

    @_guarded
    def enter(self, name: PhaseName, *, opaque: bool = False, instead_of: str | None = None) -> int:
        """Open a phase; returns what ``leave`` closes it by. On the device it replaces ``instead_of``."""
        if self._opaque and name != _WAIT:
            return 0
        token = self._last_token = self._last_token + 1
        self._events.append(("enter", self.now(), name, (token, opaque)))
        if self._opaque:
            return token
        if not self.outermost:
            self.outermost = token
            if not self.in_loop:
                self.on_edge(True)
        if opaque:
            self._opaque = token
        if self._device is not None and (instead_of is not None or name not in _HOST_ALONE):
            if instead_of is not None:
                self._device.leave(instead_of)
            self._device.enter(name)
        if self._ranges is not None:
            self._ranges.enter(name, token)
        return token

    @_guarded
    def leave(self, token: int | None, on_device: str | None = None, then: str | None = None) -> None:
        """Close a phase, if open; on the device ``on_device`` ends and ``then`` continues."""
        if not token:
            return
        self._events.append(("leave", self.now(), token, None))
        if 0 < self._opaque < token:  # inside an opaque phase
            return
        if token <= self._opaque:
            self._opaque = 0
        if token <= self.outermost:
            self._close_outermost()
        if self._device is not None and on_device is not None:
            self._device.leave(on_device)
            if then is not None:
                self._device.enter(then)
        if self._ranges is not None:
            self._ranges.leave(token)

    def mark(self, phase: PhaseName | None) -> PhaseName | None:
        """Returns the phase before, to go back to. A step calls this a dozen times: only the rare part is guarded."""
        before = self.marked
        if self._opaque or not self.in_loop or self.broken:
            return before
        self._events.append(("mark", self.now(), phase, None))
        self.marked = phase
        if self._device is not None or self._ranges is not None:
            self._mark_elsewhere(phase)
        return before

    @_guarded
    def _mark_elsewhere(self, phase: PhaseName | None) -> None:
        on_device = None if phase in _HOST_ALONE else phase
        if self._device is not None and on_device != self._on_device:
            if self._on_device is not None:
                self._device.leave(self._on_device)
            if on_device is not None:
                self._device.enter(on_device)
            self._on_device = on_device
        if self._ranges is not None:
            self._ranges.mark(phase)

    @_guarded
    def cut(self, step: Any = None, at_ns: int | None = None) -> None:
        """A step ends here, or at an earlier reading; whatever is open is closed."""
        self._append("cut", at_ns, step)

    @_guarded
    def loop(self, begins: bool, device: Any = None, at_ns: int | None = None) -> None:
        """The training loop begins, with a ``DeviceWatch`` or without, or ends."""
        self._append("loop", at_ns, begins)
        self.in_loop, self._device = begins, device
        self._ranges = _Ranges(_range_marker) if begins and _range_marker is not None else None

    @_guarded
    def gap(self, past: PhaseName | None, future: PhaseName | None) -> None:
        self._events.append(("gap", self.now(), past, future))

    @_guarded
    def end_phases(self, at_ns: int | None = None) -> None:
        """End every phase that is open; does nothing inside a loop."""
        if self.outermost and not self.in_loop:
            self._append("cut", at_ns)

    @_guarded
    def line(self, record: Mapping[str, Any]) -> None:
        self._events.append(("line", 0, record, None))

    def _append(self, kind: str, at_ns: int | None, what: Any = None) -> None:
        self._events.append((kind, self.now() if at_ns is None else at_ns, what, None))
        self.marked, self._opaque, self._on_device = None, 0, None
        self._close_outermost()
        if self._ranges is not None:
            self._ranges.cut()

    def _close_outermost(self) -> None:
        was_open, self.outermost = self.outermost, 0
        if was_open and not self.in_loop:
            self.on_edge(False)
