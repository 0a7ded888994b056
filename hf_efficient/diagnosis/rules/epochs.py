"""What starting and ending epochs took, beside the loading that any batch needs.

What the findings on epochs that start slowly have in common.

Workers of the data loader that start anew with every epoch.

Epochs that start slowly for another reason than their workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from hf_efficient.diagnosis.case import Case, StepColumns
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.text import share, short_seconds

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


def judged_starts(case: Case, rule: str, cause: str) -> EpochStarts | Verdict:
    """The starts of a run with epochs, where they take a twentieth of the loop by a rule's own cause; else its verdict.

    Args:
        case: the run.
        rule: its name.
        cause: that it tells of.
    """
    if case.first is None:
        return abstains(rule, NO_STEPS)
    starts = epoch_starts(case)
    if starts is None:
        return abstains(rule, "the data loader was not watched", "EfficientTrainerMixin, or hf_efficient.callbacks")
    if starts.epochs < 2 or case.share(starts.seconds) < OFTEN:
        return None
    return starts if starts.cause == cause else None


def starts_evidence(case: Case, starts: EpochStarts) -> list[Evidence]:
    """Its figures."""
    load = "steps.jsonl: loader"
    found = [
        Evidence("share of the loop in starts of epochs", case.share(starts.seconds), "share", load),
        Evidence("epochs started", starts.epochs, "count", f"{load}.start_seconds"),
        Evidence("starting iterators and workers", starts.started_seconds, "seconds", f"{load}.start_seconds"),
        Evidence("ending workers", starts.ended_seconds, "seconds", f"{load}.end_seconds"),
        Evidence("first batches, beyond loading them", starts.late_seconds, "seconds", f"{load}.first_wait_seconds"),
        Evidence("of that: the data set's own", starts.dataset_seconds, "seconds", f"{load}.fetch_seconds"),
    ]
    if starts.workers is not None:
        found.append(Evidence("workers", starts.workers, "count", "spans.jsonl: loader.workers"))
    return found


def worker_start(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into starting and joining workers, which could live on."""
    starts = judged_starts(case, "worker_start", "workers")
    if not isinstance(starts, EpochStarts):
        return starts
    each = starts.seconds / starts.epochs
    title = (
        f"{share(case.share(starts.seconds))} of the training loop goes into starting data loader workers anew for "
        f"each of {starts.epochs} epochs, {short_seconds(each)} each"
    )
    saved = each * (starts.epochs - 1)
    remedy = Remedy(
        "keep the workers from epoch to epoch",
        {"train.dataloader_persistent_workers": True},
        "their memory is held during evaluations too",
        case.gain(saved, "workers start once"),
    )
    return Finding(
        rule="worker_start",
        title=title,
        severity="warning",
        confidence="measured",
        evidence=starts_evidence(case, starts),
        cost=case.cost(starts.seconds),
        remedies=[remedy],
    )


def epoch_boundary(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into the first batches of epochs: a sampler, a shuffle, files, a buffer."""
    starts = judged_starts(case, "epoch_boundary", "boundary")
    if not isinstance(starts, EpochStarts):
        return starts
    each = starts.seconds / starts.epochs
    is_dataset = starts.dataset_seconds >= _MOST * starts.seconds
    where = "the data set starts over" if is_dataset else "the loader and its sampler start over"
    title = (
        f"{share(case.share(starts.seconds))} of the training loop is spent where epochs meet: {where} for "
        f"{short_seconds(each)}, {starts.epochs} times"
    )
    what = (
        "open files and fill buffers once, not at the start of each epoch; of a small data set, repeat the rows "
        "so that an epoch is longer"
        if is_dataset
        else "make the sampler cheaper (what it sorts or draws, once), or repeat the rows so that an epoch is longer"
    )
    gain = case.gain(each * (starts.epochs - 1), "all epochs but the first start at once")
    return Finding(
        rule="epoch_boundary",
        title=title,
        severity="warning",
        confidence="measured",
        evidence=starts_evidence(case, starts),
        cost=case.cost(starts.seconds),
        remedies=[Remedy(what, gain=gain)],
    )
