"""The one guard of everything that records: a fault is logged once and switches its part off; training continues."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=Any)


def guard(
    consequence: str, then: Callable[[Any], object] = lambda part: None
) -> Callable[[Callable[Concatenate[_S, _P], _R]], Callable[Concatenate[_S, _P], _R | None]]:
    """Guard the methods of a part with an attribute ``broken``, which return None once it is; ``consequence`` says what
    is lost."""

    def decorated(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R | None]:
        logger = logging.getLogger(method.__module__)

        @functools.wraps(method)
        def guarded(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
            if self.broken:
                return None
            try:
                return method(self, *args, **kwargs)
            except Exception:
                if not self.broken:
                    self.broken = True
                    logger.warning("%s, because of a fault; training continues.", consequence, exc_info=True)
                    then(self)
                return None

        return guarded

    return decorated
