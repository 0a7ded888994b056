"""Epochs that start slowly for another reason than their workers."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.epoch_findings import judged_starts, starts_evidence
from hf_efficient.diagnosis.epoch_starts import EpochStarts
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["epoch_boundary"]

_MOST = 0.5


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
