"""A data set that computes its examples when they are asked for."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.data_findings import data_finding, judged, workers_remedy
from hf_efficient.diagnosis.data_wait import DataWait
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["data_transform", "transform_once"]


def data_transform(case: Case) -> Verdict:
    """The training waits for batches, and their data set computes: tokenisation, decoding, augmentation per example."""
    wait = judged(case, "data_transform", "transform")
    if not isinstance(wait, DataWait):
        return wait
    title = (
        f"{share(wait.share)} of the training loop waits for the data set, which computes for "
        f"{short_seconds(wait.parts['transform'].seconds)} per step: tokenisation or another transform in __getitem__"
    )
    saved = wait.saved_without("transform")
    remedies = [*workers_remedy(case, wait), transform_once(case, wait)]
    return data_finding(case, "data_transform", title, wait, saved, remedies)


def transform_once(case: Case, wait: DataWait) -> Remedy:
    """Do before the training what its examples need.

    Args:
        case: the run.
        wait: of it.
    """
    return Remedy(
        "tokenise and transform once, before the training: dataset.map(..., batched=True, num_proc=...)",
        costs="room for the prepared data; what is drawn anew in each epoch has to stay in the data set",
        gain=case.gain(wait.saved_without("transform"), "a data set that hands out what lies ready"),
    )
