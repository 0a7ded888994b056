"""What each process of a proof leaves for the one that started it: a small file, written anew at every stage."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hf_efficient.account.json_file import write_whole
from hf_efficient.records.preflight import FailureKind

__all__ = ["STAGES", "Part", "RankNotes", "Stage", "notes_of", "write_notes"]

Part = Literal["save", "load"]
"""Which of the two launches."""

Stage = Literal["starting", "data", "building", "training", "evaluation", "saving", "loading", "next", "final", "done"]

STAGES: dict[Stage, str] = {
    "starting": "starting",
    "data": "reading the data",
    "building": "building model and trainer",
    "training": "the training step on the longest batch",
    "evaluation": "the evaluation of the longest batch",
    "saving": "saving a checkpoint",
    "loading": "loading the checkpoint back",
    "next": "the step after it",
    "final": "saving the model as at the end of the run",
    "done": "ending",
}
"""In words, in the order of the first launch."""


@dataclass
class RankNotes:
    """Of one process.

    Attributes:
        rank: of all processes.
        world_size: how many there are.
        stage: that it is in.
        kind, message, exit_code: of its failure; None where there is none.
        figures: what ``records.Preflight`` takes over, by its names there, and a few more for the disk.
        weights, optimizer: digests by name: after the save, or after the loading.
        losses: of the micro-batches, all steps one after the other.
    """

    rank: int
    world_size: int = 1
    stage: Stage = "starting"
    kind: FailureKind | None = None
    message: str | None = None
    exit_code: int = 1
    figures: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    optimizer: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


def write_notes(folder: Path, part: Part, notes: RankNotes) -> None:
    """Write them, in place of earlier ones.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{part}-{notes.rank}.json", json.dumps(dataclasses.asdict(notes)))


def notes_of(folder: Path, part: Part) -> list[RankNotes]:
    """Of all processes that have left some, by rank.

    Args:
        folder: of the proof.
        part: the launch.
    """
    found = []
    for path in folder.glob(f"{part}-*.json"):
        try:
            found.append(TypeAdapter(RankNotes).validate_json(path.read_bytes()))
        except (OSError, ValidationError):  # of a process that is just ending, perhaps
            continue
    return sorted(found, key=lambda notes: notes.rank)
