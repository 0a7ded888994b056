"""What the findings on epochs that start slowly have in common."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.epoch_starts import OFTEN, EpochStarts, epoch_starts
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence

__all__ = ["judged_starts", "starts_evidence"]


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
