"""What `hf-efficient prepare` made of the training sources: the manifest of a prepared data set, with its funnel."""

from dataclasses import dataclass, field
from typing import Any

MANIFEST_JSON = "manifest.json"  # beside ``train``; what has none is half-written
MANIFEST_VERSION = 1
SYNTHETIC = "synthetic"  # the stage that writes rows, and what comes before a point in the names of those after it
HELD_OUT = "held_out"  # the stage that takes `data.eval_fraction` away


@dataclass(frozen=True)
class PreparedFacts:
    """Topic ``prepared`` of a run: what it trains on. ``rows_in``, ``tokens_in`` were read, ``tokens_removed`` were
    taken away by a stage; the rest of the difference was held out, or is the blend."""

    folder: str
    rows_in: int
    rows: int
    tokens_in: int
    tokens: int
    tokens_removed: int
    seconds: float


@dataclass(frozen=True)
class SampleRow:
    """A row to look at, cut; ``why`` it went, or how the stage changed it; empty where it stayed as it is."""

    where: str
    text: str
    why: str = ""


@dataclass(frozen=True)
class StageFunnel:
    """What one stage made of its rows; ``tokens`` are counted as they are trained on, before anything is cut."""

    name: str
    rows_in: int
    rows_out: int
    tokens_in: int
    tokens_out: int
    seconds: float
    changed: int = 0  # rows that stayed with another text
    reasons: dict[str, int] = field(default_factory=dict)  # of removed rows
    removed: list[SampleRow] = field(default_factory=list)
    kept: list[SampleRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what else the stage found, in words
    usd: float = 0.0  # paid to servers

    @property
    def is_synthetic(self) -> bool:
        return self.name.partition(".")[0] == SYNTHETIC


@dataclass(frozen=True)
class PreparedSource:
    """What of a source of the recipe is in the data set, each row that the stages left ``epochs`` times."""

    key: str
    path: str
    rows: int
    tokens: int
    epochs: float


@dataclass(frozen=True)
class PreparedSet:
    """A version of a data set: ``facts`` decide what is in it, and ``key`` is their hash."""

    schema_version: int
    key: str
    recipe: str
    written: str
    rows: int
    tokens: int
    seconds: float
    sources: list[PreparedSource]
    stages: list[StageFunnel]
    versions: dict[str, str]
    facts: dict[str, Any]
