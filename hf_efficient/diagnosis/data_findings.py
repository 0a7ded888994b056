"""What the findings on a slow data loader have in common: evidence, the remedy of workers, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.data_wait import FEWEST_STEPS, Cause, DataWait, data_wait
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["data_finding", "judged", "workers_remedy"]

_SHARES_ITSELF = "datasets.iterable_dataset.IterableDataset"
_MUCH_MORE = 2.0


def judged(case: Case, rule: str, cause: Cause) -> DataWait | Verdict:
    """The wait whose cause is a rule's own; else what that rule says.

    Args:
        case: the run.
        rule: its name.
        cause: that it tells of.
    """
    if case.first is None:
        return abstains(rule, NO_STEPS)
    if "wait_seconds" not in case.first.loader:
        return abstains(rule, "the data loader was not watched", "EfficientTrainerMixin, or hf_efficient.callbacks")
    wait = data_wait(case)
    if wait is None:
        return abstains(rule, f"fewer than {FEWEST_STEPS} steps after warm-up were watched", "a longer run")
    return wait if wait.cause == cause else None


def data_finding(
    case: Case, rule: str, title: str, wait: DataWait, saved_seconds: float, remedies: Sequence[Remedy]
) -> Finding:
    """A finding of the family.

    Args:
        case: the run.
        rule: its name.
        title: the cause.
        wait: what was waited for.
        saved_seconds: over the run, if the cause were not.
        remedies: in any order.
    """
    return Finding(
        rule=rule,
        title=title,
        severity="warning",
        confidence="measured",
        evidence=_evidence(wait),
        cost=case.cost(saved_seconds),
        remedies=_ordered(remedies),
    )


def workers_remedy(case: Case, wait: DataWait) -> list[Remedy]:
    """More workers, where more would help: as a change of the recipe, unless they would repeat the data."""
    workers = wait.advised_workers
    if workers is None or wait.cores is None or wait.saved_by_workers <= 0:
        return []
    has = wait.workers or 0
    what = f"load with {workers} worker{'s' if workers > 1 else ''} beside the training"
    basis = (
        f"a step takes the longest of computing, loading over {workers}, and both over {wait.cores:g} cores "
        f"({wait.load.compute_cores:g} of them busy with training)"
    )
    gain = case.gain(wait.saved_by_workers, basis)
    loader = case.facts.get("loader", {})
    if loader.get("iterable") and loader.get("dataset") != _SHARES_ITSELF and not has:
        costs = "an iterable data set must give each worker its own part (torch.utils.data.get_worker_info)"
        return [Remedy(f"{what} (dataloader_num_workers)", costs=costs, gain=gain)]
    overrides: dict[str, Any] = {"train.dataloader_num_workers": workers}
    if _epochs(case) > 1:
        overrides["train.dataloader_persistent_workers"] = True
    return [Remedy(what, overrides, f"{workers - has} more processes, each with its own memory", gain)]


def _epochs(case: Case) -> int:
    assert case.first is not None
    return int((case.first.loader["start_seconds"] > 0).sum())


def _evidence(wait: DataWait) -> list[Evidence]:
    load = "steps.jsonl: loader"
    found = [
        Evidence("share of the loop that waits for data", wait.share, "share", f"{load}.wait_seconds"),
        Evidence("wait of a step", wait.wait_seconds, "seconds", f"{load}.wait_seconds"),
        Evidence("loading of a step, one batch after the other", wait.load.seconds, "seconds", load),
        Evidence("of that: data set blocked", wait.parts["storage"].seconds, "seconds", f"{load}.fetch_seconds"),
        Evidence(
            "of that: data set computing", wait.parts["transform"].seconds, "seconds", f"{load}.fetch_cpu_seconds"
        ),
        Evidence("of that: collator", wait.parts["collation"].seconds, "seconds", f"{load}.collate_seconds"),
        Evidence("rest of a step", wait.load.compute_seconds, "seconds", "steps.jsonl: wall_seconds"),
    ]
    if wait.workers is not None:
        found.append(Evidence("workers", wait.workers, "count", "spans.jsonl: loader.workers"))
    if wait.ready is not None:
        found.append(Evidence("batches ready when one is asked for", wait.ready, "count", f"{load}.ready"))
    if wait.cores is not None:
        found.append(Evidence("cores of a rank", wait.cores, "count", "spans.jsonl: settings.host.cores"))
    return found


def _ordered(remedies: Sequence[Remedy]) -> list[Remedy]:
    """By gain; a change of the recipe before one of the code, unless that gives more than twice as much."""

    def worth(remedy: Remedy) -> float:
        seconds = remedy.gain.seconds if remedy.gain is not None else None
        return (seconds or 0.0) * (_MUCH_MORE if remedy.overrides else 1.0)

    return sorted(remedies, key=worth, reverse=True)
