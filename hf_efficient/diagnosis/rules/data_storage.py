"""A data set that waits for its storage."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.data_findings import data_finding, judged, workers_remedy
from hf_efficient.diagnosis.data_wait import DataWait
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["data_storage"]


def data_storage(case: Case) -> Verdict:
    """The training waits for batches, and their data set is blocked: by a disk, a network, or whatever it waits for."""
    wait = judged(case, "data_storage", "storage")
    if not isinstance(wait, DataWait):
        return wait
    blocked = wait.parts["storage"].seconds
    title = (
        f"{share(wait.share)} of the training loop waits for storage: reading a step's examples blocks for "
        f"{short_seconds(blocked)} without computing"
    )
    saved = wait.saved_without("storage")
    basis = "reads that do not block, the rest of the loading as measured"
    local = Remedy(
        "bring the data nearer: copy it to a local disk or into memory before training, in fewer and larger files",
        costs="room on that disk, or memory",
        gain=case.gain(saved, basis),
    )
    return data_finding(case, "data_storage", title, wait, saved, [*workers_remedy(case, wait), local])
