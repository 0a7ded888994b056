"""Epochs that start slowly: because their workers start anew, or for another reason."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hf_efficient.accounting.steps import StepColumns
from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, Verdict, abstains, finding, rule
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.text import share, short_seconds

_MOST = 0.5


@dataclass(frozen=True)
class _EpochStarts:
    """On rank 0 over the run, beside the loading that any batch needs: iterators and workers were started, workers that
    do not persist ended, first batches late, of which ``dataset_seconds`` the data set: it opens files, shuffles."""

    epochs: int
    started_seconds: float
    ended_seconds: float
    late_seconds: float
    dataset_seconds: float
    workers: int | None
    persistent: bool

    @property
    def seconds(self) -> float:
        return self.started_seconds + self.ended_seconds + self.late_seconds

    @property
    def of_dataset(self) -> bool:
        return self.dataset_seconds >= _MOST * self.seconds

    @property
    def cause(self) -> Literal["workers", "boundary"]:
        return "workers" if self.workers and not self.persistent and not self.of_dataset else "boundary"


def _epoch_starts(case: Case) -> _EpochStarts:
    """What a batch takes is its mean in the steps in which no epoch starts: an epoch's first batch waits for one."""
    first, loader = case.first, case.first.loader
    starts = loader["start_seconds"] > 0
    fetch, collate = _of_a_batch(first, ~starts)
    epochs = int(starts.sum())
    late = max(0.0, float(np.nansum(loader["first_wait_seconds"])) - epochs * (fetch + collate))
    at_starts = float(np.nansum(loader["fetch_seconds"][starts])) - fetch * float(np.nansum(loader["fetched"][starts]))
    facts = case.facts.get("loader", {})
    return _EpochStarts(
        epochs=round(epochs * case.unseen),
        started_seconds=case.over_the_run(loader["start_seconds"]),
        ended_seconds=case.over_the_run(loader["end_seconds"]),
        late_seconds=late * case.unseen,
        dataset_seconds=min(late, max(0.0, at_starts)) * case.unseen,
        workers=facts.get("workers", case.argument("dataloader_num_workers")),
        persistent=bool(facts.get("persistent_workers", case.argument("dataloader_persistent_workers"))),
    )


def _of_a_batch(first: StepColumns, steps: np.ndarray) -> tuple[float, float]:
    fetched = float(np.nansum(first.loader["fetched"][steps]))
    if not fetched:
        return 0.0, 0.0
    fetch, collate = (float(np.nansum(first.loader[f"{name}_seconds"][steps])) for name in ("fetch", "collate"))
    return fetch / fetched, collate / fetched


@rule()
def worker_start(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into starting and joining workers, which could live on."""
    starts = _judged(case, "workers")
    if not isinstance(starts, _EpochStarts):
        return starts
    each = starts.seconds / starts.epochs
    took = f"each of {starts.epochs} epochs, {short_seconds(each)} each"
    what = f"goes into starting data loader workers anew for {took}"
    gain, costs = case.gain(each * (starts.epochs - 1), "workers start once"), "they hold memory in evaluations too"
    persist = {"train.dataloader_persistent_workers": True}
    return _finding(case, what, starts, Remedy("keep the workers from epoch to epoch", persist, costs, gain))


@rule()
def epoch_boundary(case: Case) -> Verdict:
    """A twentieth of the loop or more goes into the first batches of epochs: a sampler, a shuffle, files, a buffer."""
    starts = _judged(case, "boundary")
    if not isinstance(starts, _EpochStarts):
        return starts
    each = starts.seconds / starts.epochs
    where = "the data set starts over" if starts.of_dataset else "the loader and its sampler start over"
    title = f"is spent where epochs meet: {where} for {short_seconds(each)}, {starts.epochs} times"
    what = "make the sampler cheaper (what it sorts or draws, once), or repeat the rows so that an epoch is longer"
    if starts.of_dataset:
        what = "open files and fill buffers once, not at the start of each epoch; of a small data set, repeat the rows "
        what += "so that an epoch is longer"
    gain = case.gain(each * (starts.epochs - 1), "all epochs but the first start at once")
    return _finding(case, title, starts, Remedy(what, gain=gain))


def _judged(case: Case, cause: str) -> _EpochStarts | Verdict:
    if "start_seconds" not in case.first.loader:
        return abstains("the data loader was not watched", "EfficientTrainerMixin, or hf_efficient.callbacks")
    starts = _epoch_starts(case)
    if starts.epochs < 2 or case.share(starts.seconds) < MATTERS:
        return None
    return starts if starts.cause == cause else None


def _finding(case: Case, what: str, starts: _EpochStarts, remedy: Remedy) -> Finding:
    load = "steps.jsonl: loader"
    evidence = [
        ("share of the loop in starts of epochs", case.share(starts.seconds), "share", load),
        ("epochs started", starts.epochs, "count", f"{load}.start_seconds"),
        ("starting iterators and workers", starts.started_seconds, "seconds", f"{load}.start_seconds"),
        ("ending workers", starts.ended_seconds, "seconds", f"{load}.end_seconds"),
        ("first batches, beyond loading them", starts.late_seconds, "seconds", f"{load}.first_wait_seconds"),
        ("of that: the data set's own", starts.dataset_seconds, "seconds", f"{load}.fetch_seconds"),
        ("workers", starts.workers, "count", "spans.jsonl: loader.workers"),
    ]
    title = f"{share(case.share(starts.seconds))} of the training loop {what}"
    return finding(title, evidence, [remedy], case.cost(starts.seconds))
