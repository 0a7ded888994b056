"""Methods of instruments whose faults must not reach the training."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Breakable(Protocol):
    """What can be broken, and then does nothing."""

    broken: bool


_P = ParamSpec("_P")
_B = TypeVar("_B", bound=Breakable)


def never_raises(
    consequence: str, then: Callable[[Any], None] = lambda broken: None
) -> Callable[[Callable[Concatenate[_B, _P], Any]], Callable[Concatenate[_B, _P], None]]:
    """A fault is logged once, and breaks the object; the training goes on.

    Args:
        consequence: what there is no longer: ``The time of this process is no longer recorded``.
        then: called with what is broken now.
    """

    def decorated(method: Callable[Concatenate[_B, _P], Any]) -> Callable[Concatenate[_B, _P], None]:
        logger = logging.getLogger(method.__module__)

        @functools.wraps(method)
        def guarded(self: _B, *args: _P.args, **kwargs: _P.kwargs) -> None:
            if self.broken:
                return
            try:
                method(self, *args, **kwargs)
            except Exception:
                self.broken = True
                then(self)
                logger.warning("%s, because of a fault.", consequence, exc_info=True)

        return guarded

    return decorated
