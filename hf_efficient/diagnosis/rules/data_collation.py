"""A collator that takes long."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.data_findings import data_finding, judged, workers_remedy
from hf_efficient.diagnosis.data_wait import DataWait
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.records.findings import Remedy
from hf_efficient.units import share, short_seconds

__all__ = ["data_collation"]


def data_collation(case: Case) -> Verdict:
    """The training waits for batches, and most of their time is the collator's."""
    wait = judged(case, "data_collation", "collation")
    if not isinstance(wait, DataWait):
        return wait
    collator = case.facts.get("loader", {}).get("collator")
    named = f" ({collator})" if collator else ""
    title = (
        f"{share(wait.share)} of the training loop waits for the collator{named}, which takes "
        f"{short_seconds(wait.parts['collation'].seconds)} per step"
    )
    saved = wait.saved_without("collation")
    lighter = Remedy(
        "move work out of the collator: per example into dataset.map before the training, padding in whole tensors",
        gain=case.gain(saved, "a collator that takes no time"),
    )
    return data_finding(case, "data_collation", title, wait, saved, [*workers_remedy(case, wait), lighter])
