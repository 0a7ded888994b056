"""What starting and ending epochs took, beside the loading that any batch needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from hf_efficient.diagnosis.case import Case, StepColumns

__all__ = ["OFTEN", "EpochStarts", "epoch_starts"]

OFTEN: Final = 0.05
"""Share of the loop's time from which on the starts of epochs are a finding."""

_MOST = 0.5


@dataclass(frozen=True)
class EpochStarts:
    """Of rank 0, over the run.

    Attributes:
        epochs: that were started.
        started_seconds: making the iterators and starting their workers.
        ended_seconds: joining workers that do not persist.
        late_seconds: waiting for first batches, beyond the loading that any batch takes.
        dataset_seconds: of that, the data set's own: it opens files, fills a buffer, shuffles.
        workers: None where the loader did not tell.
        persistent: whether they outlive an epoch.
    """

    epochs: int
    started_seconds: float
    ended_seconds: float
    late_seconds: float
    dataset_seconds: float
    workers: int | None
    persistent: bool

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.started_seconds + self.ended_seconds + self.late_seconds

    @property
    def cause(self) -> Literal["workers", "boundary"]:
        """Whether workers that start anew are what takes the time."""
        anew = bool(self.workers) and not self.persistent
        return "workers" if anew and self.dataset_seconds < _MOST * self.seconds else "boundary"


def epoch_starts(case: Case) -> EpochStarts | None:
    """The starts of a run; None where no loader was watched.

    What a batch takes is its mean in the steps in which no epoch starts; the first batch of an epoch waits for one.

    Args:
        case: the run.
    """
    first = case.first
    if first is None or "start_seconds" not in first.loader:
        return None
    loader = first.loader
    starts = loader["start_seconds"] > 0
    usual = _of_a_batch(first, ~starts)
    epochs = int(starts.sum())
    late = max(0.0, float(np.nansum(loader["first_wait_seconds"])) - epochs * sum(usual))
    at_starts = float(np.nansum(loader["fetch_seconds"][starts])) - usual[0] * float(
        np.nansum(loader["fetched"][starts])
    )
    told = case.facts.get("loader", {})
    scale = max(1.0, case.account.steps.count / len(first))
    return EpochStarts(
        epochs=round(epochs * scale),
        started_seconds=float(np.nansum(loader["start_seconds"])) * scale,
        ended_seconds=float(np.nansum(loader["end_seconds"])) * scale,
        late_seconds=late * scale,
        dataset_seconds=min(late, max(0.0, at_starts)) * scale,
        workers=told.get("workers", case.argument("dataloader_num_workers")),
        persistent=bool(told.get("persistent_workers", case.argument("dataloader_persistent_workers"))),
    )


def _of_a_batch(first: StepColumns, steps: np.ndarray) -> tuple[float, float]:
    """Mean seconds in the data set and in the collator; 0 where no batch was loaded."""
    fetched = float(np.nansum(first.loader["fetched"][steps]))
    if not fetched:
        return 0.0, 0.0
    fetch, collate = (float(np.nansum(first.loader[f"{name}_seconds"][steps])) for name in ("fetch", "collate"))
    return fetch / fetched, collate / fetched
