"""Which methods and callbacks the time of the training loop went into, by phase and name."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from hf_efficient.recording.events import EventLog
from hf_efficient.records.steps import PhaseName

_LIBRARIES = ("transformers.", "trl.", "accelerate.", "hf_efficient.")
"""Their methods are what the phases are named after; those of other modules are named one by one."""

_OF_EACH_STEP = frozenset(
    {"on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end"}
)
_SHORT_NS, _ALL_OF, _EVERY = 50_000_000, 32, 7
"""A step, how many steps are timed however short, and of how many further ones one is: a prime, since people do things
every ten or hundred steps."""

Held = dict[tuple[PhaseName | None, str], int]


class Holders:
    """Adds up nanoseconds by phase and ``Class.method``; the time of an inner one is not counted for the outer.
    ``take`` returns what was added since it was called last. One thread uses it, the one that trains."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.charged_ns = 0
        self.open = 0
        """How many are under way whose time is charged to a name."""
        self.weight = 1
        """For how many steps the callbacks of this one count; 0: they are not timed."""
        self._steps = self._taken_ns = 0
        self._held: Held = {}
        self._around: PhaseName | None = None

    def charge(
        self, began_ns: int, charged_ns: int, name: str | None, phase: PhaseName | None, weight: int = 1
    ) -> None:
        """Charge the time since ``began_ns``, less what was charged since ``charged_ns``; to nobody without a name."""
        own_ns = self.log.now() - began_ns - (self.charged_ns - charged_ns)
        self.charged_ns += own_ns
        if name is not None and self.log.in_loop:
            key = (self._around or phase or self.log.marked, name)  # text costs more than the sum
            self._held[key] = self._held.get(key, 0) + own_ns * weight

    def take(self) -> Held:
        """A step has ended. Where steps are short, the callbacks of one in seven are timed, and count for seven."""
        held, self._held = self._held, {}
        began_ns, self._taken_ns = self._taken_ns, self.log.now()
        self._steps += 1
        if self._steps <= _ALL_OF or self._taken_ns - began_ns >= _SHORT_NS:
            self.weight = 1
        else:
            self.weight = 0 if self._steps % _EVERY else _EVERY
        return held

    def wrap(
        self, owner: Any, name: str, phase: PhaseName, around: Callable[..., Any], *, opaque: bool = False
    ) -> None:
        """Have the instance run ``around(method, *args)`` in place of its method, whichever class defines that. Inside
        an ``opaque`` phase all that is charged is charged to it."""
        held = inspect.getattr_static(type(owner), name)
        method = held.__get__(owner, type(owner)) if hasattr(held, "__get__") else held
        own_name = _own_name(method)
        nameless = own_name is None and not opaque

        @functools.wraps(getattr(owner, name))
        def timed(*args: Any, **kwargs: Any) -> Any:
            if nameless and not self.open:
                return around(method, *args, **kwargs)
            began_ns, charged_ns, outer = self.log.now(), self.charged_ns, self._around
            if opaque:
                self._around = outer or phase
            self.open += 1
            try:
                return around(method, *args, **kwargs)
            finally:
                self.open -= 1
                self.charge(began_ns, charged_ns, own_name, phase)
                self._around = outer

        timed.timed = timed  # type: ignore[attr-defined]
        setattr(owner, name, timed)

    def watch_callbacks(self, handler: Any) -> None:
        """Time the callbacks of a ``CallbackHandler`` one by one, also those that it gets later."""
        callbacks = handler.callbacks = TimedCallbacks(handler.callbacks, self)
        call_event = handler.call_event

        @functools.wraps(call_event)
        def named_event(event: str, *args: Any, **kwargs: Any) -> Any:
            if self.weight or event not in _OF_EACH_STEP:
                callbacks.event = event
            return call_event(event, *args, **kwargs)

        handler.call_event = named_event


class TimedCallbacks(list[Any]):
    """What ``CallbackHandler.call_event`` iterates over: until it asks for the next, the time is the callback's own."""

    def __init__(self, callbacks: list[Any], holders: Holders) -> None:
        super().__init__(callbacks)
        self.event: str | None = None
        self._holders = holders
        self._names: dict[tuple[type, str], str | None] = {}

    def __iter__(self) -> Iterator[Any]:
        event, self.event = self.event, None
        return super().__iter__() if event is None else self._timed(event)

    def _timed(self, event: str) -> Iterator[Any]:
        holders, names = self._holders, self._names
        log, weight = holders.log, holders.weight if event in _OF_EACH_STEP else 1
        for callback in super().__iter__():
            key = (type(callback), event)
            name = names[key] if key in names else names.setdefault(key, _event_name(*key))
            if name is None:
                yield callback
                continue
            began_ns, charged_ns, phase = log.now(), holders.charged_ns, log.marked
            holders.open += 1
            try:
                yield callback
            finally:
                holders.open -= 1
            holders.charge(began_ns, charged_ns, name, phase, weight)


def _event_name(kind: type, event: str) -> str | None:
    """``Class.event``; None where the class does nothing at that event."""
    inherited = getattr(getattr(kind, event, None), "__qualname__", "") == f"TrainerCallback.{event}"
    return None if inherited else f"{kind.__name__}.{event}"


def held_seconds(held: Held, least_ns: int = 0) -> dict[str, float]:
    """Seconds by ``PHASE/Class.method`` of those that took at least so long."""
    return {f"{phase or 'unattributed'}/{name}": ns / 1e9 for (phase, name), ns in held.items() if ns >= least_ns}


def is_wrapped(method: Any) -> bool:
    """Whether it is the method as ``wrap`` put it there, and not wrapped once more by somebody else."""
    return getattr(method, "timed", None) is method


def _own_name(function: Any) -> str | None:
    """``Class.method`` of a method outside the libraries; the class of another callable, which a test's mock may be."""
    if f"{getattr(function, '__module__', '')}.".startswith(_LIBRARIES):
        return None
    return ".".join(getattr(function, "__qualname__", type(function).__name__).split(".")[-2:])
