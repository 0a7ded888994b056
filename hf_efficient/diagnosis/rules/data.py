"""What the loading of a step consisted of.

What the training waited for when it waited for data: one calculation, so that its rules do not contradict.

Set apart are the wait for the first batch of an epoch, with starting and ending the epoch (see ``epoch_starts.py``),
and the part of the loading in which it waited for a core that others had (see the rule ``cpu_contention``). What is
left has one cause:

    elsewhere   the data set and the collator do not account for it: the sampler, pinning, copying between processes
    workers     they are busy, and more of them would hide half of it
    storage     else, most of the loading is the data set blocked: its CPU does nothing meanwhile
    transform   else, most of it is the data set computing
    collation   else, most of it is the collator

Without workers the slow part itself is named, and workers are the first of its remedies where cores lie idle.

What the findings on a slow data loader have in common: evidence, the remedy of workers, and their order.

A data set that waits for its storage.

A data set that computes its examples when they are asked for.

A collator that takes long.

Too few processes that load, where more would hide the loading.

The training waits for its loader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hf_efficient.diagnosis.case import Case, StepColumns
from hf_efficient.diagnosis.rule import (
    MATTERS,
    NO_STEPS,
    SOURCE,
    Verdict,
    abstains,
    clear,
    cost,
    gain,
    part_evidence,
    share_of,
    unknown,
)
from hf_efficient.diagnosis.rules.machine import compute_cores, cores_of_a_rank
from hf_efficient.estimate.throughput import StepLoad, best_workers, loaded_step_seconds
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation, LoaderAlone, StepPart
from hf_efficient.text import share, short_seconds


class Part(NamedTuple):
    """Of the loading of a step: seconds that wait and take no core, and seconds that compute."""

    blocked_seconds: float
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.blocked_seconds + self.cpu_seconds


def load_parts(mean: Mapping[str, float]) -> tuple[dict[str, Part], float]:
    """The loading of a step by what it did; and the time that it waited for a core, which is taken out of its waits.

    A thread that waits while others of its process compute (a tokenizer's, a decoder's) is not blocked.

    Args:
        mean: of a step, by the names of ``StepLoader``.

    Returns:
        Parts named ``storage``, ``transform`` and ``collation``, and seconds.
    """
    fetch, fetch_busy = _wall_and_busy(mean, "fetch")
    collate, collate_busy = _wall_and_busy(mean, "collate")
    waits = (fetch - fetch_busy) + (collate - collate_busy)
    core_wait = min(mean["core_wait_seconds"], waits)
    kept = 1 - core_wait / waits if waits > 0 else 1.0
    parts = {
        "storage": Part((fetch - fetch_busy) * kept, 0.0),
        "transform": Part(0.0, fetch_busy),
        "collation": Part((collate - collate_busy) * kept, collate_busy),
    }
    return parts, core_wait


def _wall_and_busy(mean: Mapping[str, float], name: str) -> tuple[float, float]:
    wall = mean[f"{name}_seconds"]
    return wall, min(wall, max(mean[f"{name}_cpu_seconds"], mean[f"{name}_process_cpu_seconds"]))


def helped_seconds(mean: Mapping[str, float]) -> float:
    """CPU time of other threads while the loading thread's own wall time went by: of a tokenizer, a decoder.

    Args:
        mean: of a step, by the names of ``StepLoader``.
    """
    return sum(max(0.0, mean[f"{name}_process_cpu_seconds"] - mean[f"{name}_seconds"]) for name in ("fetch", "collate"))


STARVED: Final = 0.10
"""Share of the loop's time from which on waiting for data is a finding."""

FEWEST_STEPS: Final = 5
_MOST = 0.5

Cause = Literal["none", "elsewhere", "workers", "storage", "transform", "collation"]


@dataclass(frozen=True)
class DataWait:
    """The wait for data of rank 0, without that for the first batch of an epoch and without waiting for cores.

    Attributes:
        seconds: over the run.
        share: of the loop's time.
        steps: of the run.
        step_seconds: mean of a step after warm-up, without evaluation and checkpointing, and what is set apart.
        wait_seconds: of that.
        load: what such a step computes and loads.
        parts: the loading of such a step: ``storage``, ``transform``, ``collation``.
        core_wait_seconds: that the loading of such a step waited for a core, beside all of these.
        ready: batches that lay ready when one was asked for; None without workers.
        workers: None where the loader did not tell.
        cores: for this process; None where they are not known.
    """

    seconds: float
    share: float
    steps: int
    step_seconds: float
    wait_seconds: float
    load: StepLoad
    parts: Mapping[str, Part]
    core_wait_seconds: float
    ready: float | None
    workers: int | None
    cores: float | None

    @cached_property
    def advised_workers(self) -> int | None:
        """How many would be best; None where that is no more than there are, or the cores are not known."""
        if self.cores is None:
            return None
        best = best_workers(self.load, self.cores)
        return best if best > (self.workers or 0) else None

    @property
    def saved_by_workers(self) -> float:
        """Seconds over the run that the advised workers save; never more than was waited."""
        if self.advised_workers is None or self.cores is None:
            return 0.0
        return self.saved_by(self.step_seconds - loaded_step_seconds(self.load, self.advised_workers, self.cores))

    def saved_by(self, seconds: float) -> float:
        """Over the run, where a step takes so much less; never more than was waited."""
        return self.steps * min(max(0.0, seconds), self.wait_seconds)

    def saved_without(self, part: str) -> float:
        """Seconds over the run that are saved where a part of the loading goes.

        Args:
            part: ``storage``, ``transform`` or ``collation``.
        """
        gone, load = self.parts[part], self.load
        blocked, cpu = load.blocked_seconds - gone.blocked_seconds, load.cpu_seconds - gone.cpu_seconds
        left = StepLoad(load.compute_seconds, load.compute_cores, max(0.0, blocked), max(0.0, cpu))
        cores = self.cores or load.compute_cores + 1
        return self.saved_by(self.step_seconds - loaded_step_seconds(left, self.workers or 0, cores))

    @cached_property
    def cause(self) -> Cause:
        """See the module."""
        if self.share < STARVED:
            return "none"
        loading = self.load.seconds
        beside = loading / self.workers if self.workers else loading
        if beside < _MOST * (self.step_seconds if self.workers else self.wait_seconds):
            return "elsewhere"
        kind: Cause = max(("storage", "transform", "collation"), key=lambda part: self.parts[part].seconds)
        if self.workers and self.saved_by_workers >= _MOST * self.seconds:
            return "workers"
        return kind


def data_wait(case: Case) -> DataWait | None:
    """The wait of a run.

    Args:
        case: the run.

    Returns:
        None where no loader was watched, or in fewer than five steps after warm-up.
    """
    first = case.first
    if first is None or "wait_seconds" not in first.loader:
        return None
    watched = first.steady & np.isfinite(first.loader["wait_seconds"])
    if int(watched.sum()) < FEWEST_STEPS:
        return None
    mean = {name: float(column[watched].mean()) for name, column in first.loader.items()}
    wait = mean["wait_seconds"] - mean["first_wait_seconds"]
    if "exposed_wait" in first.device_seconds:  # what a GPU has to do meanwhile hides the rest
        wait = min(wait, float(np.nanmean(first.device_seconds["exposed_wait"][watched])))
    boundary = mean["start_seconds"] + mean["end_seconds"] + mean["first_wait_seconds"]
    compute = max(0.0, float(first.step_seconds[watched].mean()) - boundary - wait)
    parts, core_wait = load_parts(mean)
    blocked, cpu = (sum(column) for column in zip(*parts.values(), strict=True))
    if core_wait > 0:
        wait *= (blocked + cpu) / (blocked + cpu + core_wait)
    steps = case.account.steps.count
    workers = case.facts.get("loader", {}).get("workers", case.argument("dataloader_num_workers"))
    helped = 0.0 if workers else helped_seconds(mean)
    return DataWait(
        seconds=wait * steps,
        share=case.share(wait * steps),
        steps=steps,
        step_seconds=compute + wait,
        wait_seconds=wait,
        load=StepLoad(compute, compute_cores(case), blocked, cpu, helped),
        parts=parts,
        core_wait_seconds=core_wait,
        ready=_ready(first, watched),
        workers=workers,
        cores=cores_of_a_rank(case),
    )


def _ready(first: StepColumns, watched: npt.NDArray[np.bool_]) -> float | None:
    ready, batches = first.loader.get("ready"), first.loader["batches"]
    if ready is None:
        return None
    asked = watched & np.isfinite(ready)
    return float(ready[asked].sum() / batches[asked].sum()) if batches[asked].sum() > 0 else None


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


def few_workers_few_workers(found: Isolation) -> Finding | Abstention | None:
    """Batches made beforehand save a twentieth of the step or more: workers load while the model computes."""
    part = clear(found, "data")
    if part is None or part.seconds is None or share_of(found, part.seconds) < MATTERS:
        return unknown(found, "few_workers", "data")
    evidence = part_evidence(found, part, "data wait of a step")
    loader = found.loader
    if loader is not None:
        evidence.append(Evidence("the loader alone", loader.step_seconds, "seconds", f"{SOURCE}: loader"))
    if loader is not None and loader.model_step_seconds is not None:
        source = f"{SOURCE}: held_batches"
        evidence.append(Evidence("the model alone", loader.model_step_seconds, "seconds", source))
    workers = found.schedule.workers
    loads = f"of {workers} workers" if workers else "in the process that trains"
    return Finding(
        rule="few_workers",
        title=f"{share(share_of(found, part.seconds))} of a step is waiting for the data loader, which loads {loads}",
        severity="warning",
        confidence="measured",
        evidence=[*evidence, Evidence("workers of the loader", workers, "count", "recipe")],
        cost=cost(found, part.seconds),
        remedies=[] if loader is None else _remedies(found, part, loader),
    )


def _remedies(found: Isolation, part: StepPart, loader: LoaderAlone) -> list[Remedy]:
    """As many workers as are best, where that is more than there are."""
    assert part.seconds is not None
    schedule = found.schedule
    serial = loader.step_seconds * max(1, schedule.workers)
    cpu = serial if loader.cpu_seconds is None else min(serial, loader.cpu_seconds)
    model = loader.model_step_seconds or found.step_seconds - part.seconds
    computes = float(min(schedule.threads, schedule.cores)) if schedule.device == "cpu" else 1.0
    load = StepLoad(model, computes, serial - cpu, cpu)
    workers = best_workers(load, schedule.cores)
    saved = min(part.seconds, model + part.seconds - loaded_step_seconds(load, workers, schedule.cores))
    if workers <= schedule.workers or saved <= 0:
        return []
    basis = (
        f"a step takes the longest of computing, loading over {workers}, and both over {schedule.cores:g} cores "
        f"({computes:g} of them busy with training)"
    )
    what = f"load with {workers} worker{'s' if workers > 1 else ''} beside the training"
    more = workers - schedule.workers
    costs = f"{more} more process{'es' if more > 1 else ''}, with memory of {'their' if more > 1 else 'its'} own"
    return [Remedy(what, {"train.dataloader_num_workers": workers}, costs, gain(found, saved, basis))]
