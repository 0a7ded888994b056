"""Where torch's loader makes its iterators, with somebody who may look at them.

The method of the class is replaced rather than one of a loader, so that a loader can be copied and pickled as before,
and so that one that accelerate derives from it, to go on in the middle of an epoch, is found as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["MakesIterator", "Watcher", "let_go", "look_at_iterators"]

MakesIterator = Callable[[Any], Any]
Watcher = Callable[[Any, MakesIterator], Any]
"""Given a loader and what makes its iterator, returns that iterator."""

_METHOD = "_get_iterator"
_watchers: list[Watcher] = []
_replaced: dict[type, MakesIterator] = {}


def look_at_iterators(loader: Any, watcher: Watcher) -> None:
    """From here on ``watcher`` makes the iterators of every loader of this kind, until ``let_go``.

    Raises:
        TypeError: it is no loader of torch's.
    """
    owner = next((kind for kind in type(loader).__mro__ if _METHOD in vars(kind)), None)
    if owner is None:
        raise TypeError(f"a {type(loader).__name__} makes its batches in a way of its own")
    if owner not in _replaced:
        _replaced[owner] = vars(owner)[_METHOD]
        setattr(owner, _METHOD, _watched(_replaced[owner]))
    _watchers.append(watcher)


def let_go(watcher: Watcher) -> None:
    """The opposite; with the last one torch's own methods are back."""
    if watcher in _watchers:
        _watchers.remove(watcher)
    if not _watchers:
        for owner, method in _replaced.items():
            setattr(owner, _METHOD, method)
        _replaced.clear()


def _watched(make: MakesIterator) -> MakesIterator:
    @functools.wraps(make)
    def made(loader: Any) -> Any:
        maker = make
        for watcher in _watchers:
            maker = functools.partial(_through, watcher, maker)
        return maker(loader)

    return made


def _through(watcher: Watcher, make: MakesIterator, loader: Any) -> Any:
    return watcher(loader, make)
