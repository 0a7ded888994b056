"""cProfile and pyinstrument behind one face."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hf_efficient.account.code_place import code_place
from hf_efficient.records import FunctionTable, FunctionTime

__all__ = ["FunctionProfiler", "function_profiler"]

_MOST_FUNCTIONS = 50
_INTERVAL_SECONDS = 0.001


class FunctionProfiler(Protocol):
    """Profiles the thread that starts it."""

    def start(self) -> None:
        """From here on."""

    def stop(self, stem: Path, process: str) -> tuple[FunctionTable, list[Path]]:
        """No more; the table of the process, and the files that were written as ``stem`` with endings of their own."""


def function_profiler(tool: str) -> FunctionProfiler:
    """``cprofile`` or ``pyinstrument``."""
    profilers: dict[str, Callable[[], FunctionProfiler]] = {"cprofile": _CProfile, "pyinstrument": _Pyinstrument}
    return profilers[tool]()


class _CProfile:
    def __init__(self) -> None:
        self._profile = cProfile.Profile()

    def start(self) -> None:
        self._profile.enable()

    def stop(self, stem: Path, process: str) -> tuple[FunctionTable, list[Path]]:
        self._profile.disable()
        path = stem.with_name(f"{stem.name}.pstats")
        stats = pstats.Stats(self._profile)
        if path.exists():  # a worker of the epoch before
            stats.add(str(path))
        stats.dump_stats(path)
        held: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = stats.stats  # type: ignore[attr-defined]
        functions = [
            FunctionTime(code_place(*place), self_seconds, total_seconds, calls)
            for place, (_, calls, self_seconds, total_seconds, _) in held.items()
        ]
        return _table(process, "cprofile", functions), [path]


class _Pyinstrument:
    def __init__(self) -> None:
        from pyinstrument import Profiler

        self._profiler = Profiler(interval=_INTERVAL_SECONDS, async_mode="disabled")

    def start(self) -> None:
        self._profiler.start()

    def stop(self, stem: Path, process: str) -> tuple[FunctionTable, list[Path]]:
        session = self._profiler.stop()
        path = stem.with_name(f"{stem.name}.html")
        self._profiler.write_html(path)
        own: dict[str, float] = {}
        total: dict[str, float] = {}
        for stack, seconds in session.frame_records:
            places = [_pyinstrument_place(frame) for frame in stack if "<thread>" not in frame]
            if places:
                own[places[-1]] = own.get(places[-1], 0.0) + seconds
            for place in set(places):
                total[place] = total.get(place, 0.0) + seconds
        functions = [FunctionTime(place, own.get(place, 0.0), seconds) for place, seconds in total.items()]
        return _table(process, "pyinstrument", functions), [path]


def _pyinstrument_place(frame: str) -> str:
    """A frame is ``name NUL file NUL line``, with attributes behind it."""
    name, file, line = frame.split("\x01")[0].split("\x00")[:3]
    return code_place(file, int(line or 0), name)


def _table(process: str, tool: str, functions: list[FunctionTime]) -> FunctionTable:
    ordered = sorted(functions, key=lambda function: (-function.self_seconds, function.place))
    seconds = sum(function.self_seconds for function in functions)
    left_out = max(0, len(ordered) - _MOST_FUNCTIONS)
    return FunctionTable(process, tool, seconds, ordered[:_MOST_FUNCTIONS], left_out)
