"""What a planted run is, and the list that each adds itself to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["CASES", "PlantedCase", "Setup", "planted"]


@dataclass(frozen=True)
class Setup:
    """What the process of a run is told.

    Attributes:
        folder: output directory.
        corpus: folder that ``corpus.py`` has filled.
        server: ``HOST:PORT`` of ``server.py``.
        overrides: the change that a remedy makes, by dotted key of a recipe.
        mended: the run without its fault, for faults that no recipe mends.
    """

    folder: Path
    corpus: Path
    server: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    mended: bool = False

    def override(self, key: str, default: Any) -> Any:
        """What a remedy sets, or else what the run has by itself."""
        return self.overrides.get(key, default)


@dataclass(frozen=True)
class PlantedCase:
    """A run with a cause.

    Attributes:
        name: as ``--only`` takes it.
        what: is wrong, in words.
        expected: rules whose finding may stand first; empty: a healthy run.
        build: makes its trainer.
        ranks: processes that train together.
        busy_cores: processes that compute beside it for as long as it runs, and belong to somebody else.
        environment: of the process.
        code_remedy: what ``Setup.mended`` changes, in words; empty where only a recipe mends it, or nothing.
    """

    name: str
    what: str
    expected: tuple[str, ...]
    build: Callable[[Setup], Any]
    ranks: int = 1
    busy_cores: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    code_remedy: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to find."""
        return not self.expected


CASES: dict[str, PlantedCase] = {}
"""By name, in the order of their files."""


def planted(what: str, *expected: str, **fields: Any) -> Callable[[Callable[[Setup], Any]], Callable[[Setup], Any]]:
    """Enter a function that builds a trainer as the case of its name.

    Args:
        what: is wrong, in words.
        expected: names of rules, any of which may stand first; none: a healthy run.
        fields: others of ``PlantedCase``.
    """

    def enter(build: Callable[[Setup], Any]) -> Callable[[Setup], Any]:
        name = build.__name__
        CASES[name] = PlantedCase(name, what, expected, build, **fields)
        return build

    return enter
