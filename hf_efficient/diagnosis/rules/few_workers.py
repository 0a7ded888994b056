"""Too few processes that load, where more would hide the loading."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.data_findings import data_finding, judged, workers_remedy
from hf_efficient.diagnosis.data_wait import DataWait
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.diagnosis.rules.data_transform import transform_once
from hf_efficient.records.findings import Remedy
from hf_efficient.units import share

__all__ = ["few_workers"]

_DONE = {
    "storage": "waiting for storage",
    "transform": "computing in the data set",
    "collation": "in the collator",
}


def few_workers(case: Case) -> Verdict:
    """The workers cannot keep up though there is room for more."""
    wait = judged(case, "few_workers", "workers")
    if not isinstance(wait, DataWait):
        return wait
    kind = max(wait.parts, key=lambda part: wait.parts[part].seconds)
    most = f"{share(wait.parts[kind].seconds / wait.load.seconds)} of the loading is {_DONE[kind]}"
    waits = f"{share(wait.share)} of the training loop waits for data"
    count = wait.workers or 0
    kept_up = f"{count} worker{'s' if count > 1 else ''} cannot keep up"
    remedies: list[Remedy] = workers_remedy(case, wait)
    if kind == "transform":
        remedies.append(transform_once(case, wait))
    return data_finding(case, "few_workers", f"{waits}: {kept_up}; {most}", wait, wait.saved_by_workers, remedies)
