"""Workers of the data loader that start anew with every epoch."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.epoch_findings import judged_starts, starts_evidence
from hf_efficient.diagnosis.epoch_starts import EpochStarts
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["worker_start"]


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
