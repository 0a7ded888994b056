"""What is planted: a rank, a phase, and how it is slowed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CASES", "CONTROLS", "PHASES", "SHARE", "StragglerCase"]

SHARE = 0.3
"""Of a healthy step, or of a healthy save, that the slowed rank takes longer."""

PHASES = {"data": "data_wait", "forward": "forward", "backward": "backward", "save": "checkpointing"}
"""What can be slowed, and the phase that it is in the records."""


@dataclass(frozen=True)
class StragglerCase:
    """One run.

    Attributes:
        slowed: of ``PHASES``; empty: a healthy run.
        rank: that is slowed.
        how: ``sleep``: it waits for nothing, as for a slow store; ``work``: it computes, as on a slower core.
        model: ``small`` or ``larger``.
        saves: both ranks save every second step, each for itself, as two nodes with a disk each do
            (``save_on_each_node``); else nobody saves.
    """

    slowed: str
    rank: int
    how: str
    model: str
    saves: bool

    @property
    def name(self) -> str:
        """For ``--only`` and messages."""
        if not self.slowed:
            return f"healthy-{self.model}" + ("-saves" if self.saves else "")
        return f"{self.slowed}-rank{self.rank}-{self.how}-{self.model}"

    @property
    def control(self) -> str:
        """Name of the healthy run that it is slowed against."""
        return StragglerCase("", 0, "", self.model, self.saves).name


CONTROLS = [StragglerCase("", 0, "", model, saves) for model in ("small", "larger") for saves in (False, True)]
CASES = [
    StragglerCase(slowed, rank, how, model, slowed == "save")
    for slowed in PHASES
    for rank, how, model in ((0, "sleep", "small"), (1, "work", "small"), (1, "sleep", "larger"))
]
