"""What a deeper instrument is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Instrument", "Place"]


@dataclass(frozen=True)
class Place:
    """Where an instrument works.

    Attributes:
        directory: its files go here; it is there.
        rank: of this process.
        loader: of the training, for who looks into its workers; None where it is not known.
        model: that is trained, for who looks into its modules; None where it is not known.
    """

    directory: Path
    rank: int
    loader: Any = None
    model: Any = None


class Instrument:
    """Base of all of them; an ``InstrumentRun`` calls these methods in order, and catches what they raise.

    Attributes:
        name: of its facts.
        active: the step that begins now is under it.
        files: that it has written.
        notes: what is missing, and why.
    """

    name = ""

    def __init__(self) -> None:
        """Nothing is touched before ``start``."""
        self.active = False
        self.files: list[Path] = []
        self.notes: list[str] = []

    def start(self, place: Place) -> None:
        """Training begins."""

    def step_begins(self, step: int) -> None:
        """The batches of this optimizer step, counted from 1, are there."""

    def step_ends(self, step: int) -> None:
        """This step is done; what follows belongs to the next one."""

    def stop(self) -> None:
        """Training is over, or this instrument failed: write what there is and undo everything."""
