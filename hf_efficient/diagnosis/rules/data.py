"""Waiting for data: one calculation of what was waited for, so that its rules do not contradict each other.

Two are set apart: the wait for the first batch of an epoch (``pauses.py``), and the part of the loading that waited for
a core that others had (``cpu_contention``). What is left has one cause:

    elsewhere   the data set and the collator do not account for it: the sampler, pinning, copying between processes
    workers     they are busy, and more of them would hide half of it
    storage     else, most of the loading is the data set blocked: its CPU does nothing meanwhile
    transform   else, most of it is the data set computing
    collation   else, most of it is the collator

Without workers the slow part itself is named, and workers are the first of its remedies where cores lie idle.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from hf_efficient.diagnosis.case import MATTERS, Case, IsolatedRecipe, Row, Rule, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules.machine import compute_cores, cores_of_a_rank
from hf_efficient.estimate.throughput import StepLoad, best_workers, loaded_step_seconds
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.records.isolation import LoaderAlone
from hf_efficient.text import counted, share, short_seconds

_FEWEST_STEPS = 5
_MOST = 0.5
_LOADING = ("fetch", "collate")
_SHARES_ITSELF = "datasets.iterable_dataset.IterableDataset"

Cause = Literal["none", "elsewhere", "workers", "storage", "transform", "collation"]


class _Part(NamedTuple):
    """Of the loading of a step: seconds that wait and take no core, and seconds that compute."""

    blocked_seconds: float
    cpu_seconds: float

    @property
    def seconds(self) -> float:
        return self.blocked_seconds + self.cpu_seconds


@dataclass(frozen=True)
class _DataWait:
    """The wait for data of rank 0, without that for the first batch of an epoch and without waiting for cores.
    ``step_seconds`` is the mean of a step after warm-up, without pauses and what is set apart; ``wait_seconds`` are of
    that, ``parts`` its loading: ``storage``, ``transform``, ``collation``. ``ready``: batches that were when one was
    asked for, None without workers. ``cores``: for this process."""

    seconds: float
    share: float
    steps: int
    step_seconds: float
    wait_seconds: float
    load: StepLoad
    parts: Mapping[str, _Part]
    ready: float | None
    workers: int | None
    cores: float | None

    @cached_property
    def advised_workers(self) -> int | None:
        if self.cores is None:
            return None
        best = best_workers(self.load, self.cores)
        return best if best > (self.workers or 0) else None

    @property
    def saved_by_workers(self) -> float:
        """Seconds over the run that the advised workers save."""
        if self.advised_workers is None or self.cores is None:
            return 0.0
        return self._saved(loaded_step_seconds(self.load, self.advised_workers, self.cores))

    def saved_without(self, part: str) -> float:
        """Seconds over the run that are saved where ``storage``, ``transform`` or ``collation`` takes no time."""
        gone, load = self.parts[part], self.load
        blocked, cpu = load.blocked_seconds - gone.blocked_seconds, load.cpu_seconds - gone.cpu_seconds
        left = StepLoad(load.compute_seconds, load.compute_cores, max(0.0, blocked), max(0.0, cpu))
        return self._saved(loaded_step_seconds(left, self.workers or 0, self.cores or load.compute_cores + 1))

    def _saved(self, step_seconds: float) -> float:
        return self.steps * min(max(0.0, self.step_seconds - step_seconds), self.wait_seconds)

    @cached_property
    def cause(self) -> Cause:
        if self.share < 0.1:
            return "none"
        beside = self.load.seconds / (self.workers or 1)
        if beside < _MOST * (self.step_seconds if self.workers else self.wait_seconds):
            return "elsewhere"
        kind: Cause = max(("storage", "transform", "collation"), key=lambda part: self.parts[part].seconds)
        return "workers" if self.workers and self.saved_by_workers >= _MOST * self.seconds else kind


def _data_wait(case: Case) -> _DataWait | None:
    first = case.first
    watched = first.steady & np.isfinite(first.loader["wait_seconds"])
    if int(watched.sum()) < _FEWEST_STEPS:
        return None
    mean = {name: float(column[watched].mean()) for name, column in first.loader.items()}
    wait = mean["wait_seconds"] - mean["first_wait_seconds"]
    if "exposed_wait" in first.device_seconds:  # what a GPU has to do meanwhile hides the rest
        wait = min(wait, float(np.nanmean(first.device_seconds["exposed_wait"][watched])))
    boundary = mean["start_seconds"] + mean["end_seconds"] + mean["first_wait_seconds"]
    compute = max(0.0, float(first.step_seconds[watched].mean()) - boundary - wait)
    parts, core_wait = _load_parts(mean)
    blocked, cpu = (sum(column) for column in zip(*parts.values(), strict=True))
    if core_wait > 0:
        wait *= (blocked + cpu) / (blocked + cpu + core_wait)
    # CPU time of other threads while the loading thread's own wall time went by: of a tokenizer, a decoder.
    helped = sum(max(0.0, mean[f"{name}_process_cpu_seconds"] - mean[f"{name}_seconds"]) for name in _LOADING)
    ready = first.loader.get("ready", np.full(len(first), np.nan))
    asked = watched & np.isfinite(ready)
    batches = first.loader["batches"][asked].sum()
    steps = case.account.steps.count
    workers = case.facts.get("loader", {}).get("workers", case.argument("dataloader_num_workers"))
    return _DataWait(
        seconds=wait * steps,
        share=case.share(wait * steps),
        steps=steps,
        step_seconds=compute + wait,
        wait_seconds=wait,
        load=StepLoad(compute, compute_cores(case), blocked, cpu, 0.0 if workers else helped),
        parts=parts,
        ready=float(ready[asked].sum() / batches) if batches > 0 else None,
        workers=workers,
        cores=cores_of_a_rank(case),
    )


def _load_parts(mean: Mapping[str, float]) -> tuple[dict[str, _Part], float]:
    """By what it did, and the time without a core. A thread that waits while others of its process compute (a
    tokenizer's) is not blocked."""
    busy, blocked = {}, {}
    for name in _LOADING:
        wall = mean[f"{name}_seconds"]
        busy[name] = min(wall, max(mean[f"{name}_cpu_seconds"], mean[f"{name}_process_cpu_seconds"]))
        blocked[name] = wall - busy[name]
    waits = blocked["fetch"] + blocked["collate"]
    core_wait = min(mean["core_wait_seconds"], waits)
    kept = 1 - core_wait / waits if waits > 0 else 1.0
    parts = {
        "storage": _Part(blocked["fetch"] * kept, 0.0),
        "transform": _Part(0.0, busy["fetch"]),
        "collation": _Part(blocked["collate"] * kept, busy["collate"]),
    }
    return parts, core_wait


def _caused_by(cause: Cause) -> Callable[[Callable[[Case, _DataWait], Finding]], Rule[Case]]:
    """A rule that finds something where the wait for data has this cause."""

    def named(judge: Callable[[Case, _DataWait], Finding]) -> Rule[Case]:
        @rule(name=judge.__name__)
        def judged(case: Case) -> Verdict:
            if "wait_seconds" not in case.first.loader:
                return abstains("the data loader was not watched", "EfficientTrainerMixin, or hf_efficient.callbacks")
            wait = _data_wait(case)
            if wait is None:
                return abstains(f"fewer than {_FEWEST_STEPS} steps after warm-up were watched", "a longer run")
            return judge(case, wait) if wait.cause == cause else None

        judged.__doc__ = judge.__doc__
        return judged

    return named


@_caused_by("storage")
def data_storage(case: Case, wait: _DataWait) -> Finding:
    """The training waits for batches, and their data set is blocked: by a disk, a network, or whatever it waits for."""
    took = short_seconds(wait.parts["storage"].seconds)
    title = f"waits for storage: reading a step's examples blocks for {took} without computing"
    what = "bring the data nearer: copy it to a local disk or into memory before training, in fewer and larger files"
    gain = case.gain(wait.saved_without("storage"), "reads that do not block, the rest of the loading as measured")
    return _finding(case, title, wait, "storage", Remedy(what, costs="room on that disk, or memory", gain=gain))


@_caused_by("transform")
def data_transform(case: Case, wait: _DataWait) -> Finding:
    """The training waits for batches, and their data set computes: tokenisation, decoding, augmentation per example."""
    took = f"{short_seconds(wait.parts['transform'].seconds)} per step"
    title = f"waits for the data set, which computes for {took}: tokenisation or another transform in __getitem__"
    return _finding(case, title, wait, "transform", _transform_once(case, wait))


def _transform_once(case: Case, wait: _DataWait) -> Remedy:
    return Remedy(
        "tokenise and transform once, before the training: dataset.map(..., batched=True, num_proc=...)",
        costs="room for the prepared data; what is drawn anew in each epoch has to stay in the data set",
        gain=case.gain(wait.saved_without("transform"), "a data set whose examples are ready"),
    )


@_caused_by("collation")
def data_collation(case: Case, wait: _DataWait) -> Finding:
    """The training waits for batches, and most of their time is the collator's."""
    collator = case.facts.get("loader", {}).get("collator")
    named, took = f" ({collator})" if collator else "", short_seconds(wait.parts["collation"].seconds)
    what = "move work out of the collator: per example into dataset.map before the training, padding in whole tensors"
    lighter = Remedy(what, gain=case.gain(wait.saved_without("collation"), "a collator that takes no time"))
    return _finding(case, f"waits for the collator{named}, which takes {took} per step", wait, "collation", lighter)


@_caused_by("workers")
def few_workers(case: Case, wait: _DataWait) -> Finding:
    """The workers cannot keep up though there is room for more."""
    kind = max(wait.parts, key=lambda part: wait.parts[part].seconds)
    done = {"storage": "waiting for storage", "transform": "computing in the data set", "collation": "in the collator"}
    loading = f"{share(wait.parts[kind].seconds / wait.load.seconds)} of the loading is {done[kind]}"
    title = f"waits for data: {counted(wait.workers or 0, 'worker')} cannot keep up; {loading}"
    return _finding(case, title, wait, "workers", *([_transform_once(case, wait)] if kind == "transform" else []))


def _finding(case: Case, what: str, wait: _DataWait, cause: Cause, *remedies: Remedy) -> Finding:
    """Remedies by gain; a change of the recipe before one of the code, unless that gives more than twice as much."""

    def worth(remedy: Remedy) -> float:
        seconds = remedy.gain.seconds if remedy.gain is not None else None
        return (seconds or 0.0) * (2.0 if remedy.overrides else 1.0)

    saved = wait.saved_by_workers if cause == "workers" else wait.saved_without(cause)
    ordered = sorted([*_workers_remedy(case, wait), *remedies], key=worth, reverse=True)
    return finding(f"{share(wait.share)} of the training loop {what}", _evidence(wait), ordered, case.cost(saved))


def _evidence(wait: _DataWait) -> list[Row]:
    load = "steps.jsonl: loader"
    return [
        ("share of the loop that waits for data", wait.share, "share", f"{load}.wait_seconds"),
        ("wait of a step", wait.wait_seconds, "seconds", f"{load}.wait_seconds"),
        ("loading of a step, one batch after the other", wait.load.seconds, "seconds", load),
        ("of that: data set blocked", wait.parts["storage"].seconds, "seconds", f"{load}.fetch_seconds"),
        ("of that: data set computing", wait.parts["transform"].seconds, "seconds", f"{load}.fetch_cpu_seconds"),
        ("of that: collator", wait.parts["collation"].seconds, "seconds", f"{load}.collate_seconds"),
        ("rest of a step", wait.load.compute_seconds, "seconds", "steps.jsonl: wall_seconds"),
        ("workers", wait.workers, "count", "spans.jsonl: loader.workers"),
        ("batches ready when one is asked for", wait.ready, "count", f"{load}.ready"),
        ("cores of a rank", wait.cores, "count", "spans.jsonl: settings.host.cores"),
    ]


def _workers_remedy(case: Case, wait: _DataWait) -> list[Remedy]:
    workers = wait.advised_workers
    if workers is None or wait.cores is None or wait.saved_by_workers <= 0:
        return []
    has, loader = wait.workers or 0, case.facts.get("loader", {})
    gain = case.gain(wait.saved_by_workers, _workers_basis(workers, wait.cores, wait.load.compute_cores))
    if loader.get("iterable") and loader.get("dataset") != _SHARES_ITSELF and not has:
        costs = "an iterable data set must give each worker its own part (torch.utils.data.get_worker_info)"
        return [Remedy(f"{_load_with(workers)} (dataloader_num_workers)", costs=costs, gain=gain)]
    overrides: dict[str, Any] = {"train.dataloader_num_workers": workers}
    if int((case.first.loader["start_seconds"] > 0).sum()) > 1:  # epochs
        overrides["train.dataloader_persistent_workers"] = True
    return [Remedy(_load_with(workers), overrides, f"{workers - has} more processes, each with its own memory", gain)]


def _load_with(workers: int) -> str:
    return f"load with {counted(workers, 'worker')} beside the training"


def _workers_basis(workers: int, cores: float, busy: float) -> str:
    return (
        f"a step takes the longest of computing, loading over {workers}, and both over {cores:g} cores "
        f"({busy:g} of them busy with training)"
    )


@rule(name="few_workers")
def isolated_few_workers(recipe: IsolatedRecipe) -> Verdict:
    """Batches made beforehand save a twentieth of the step or more: workers load while the model computes."""
    taken, loader, workers = recipe.taken("data"), recipe.found.loader, recipe.found.schedule.workers
    if recipe.of_a_step(taken) < MATTERS:
        return recipe.unknown("data")
    evidence = recipe.evidence("data", "data wait of a step")
    if loader is not None:
        evidence.append(("the loader alone", loader.step_seconds, "seconds", "isolate: loader"))
        evidence.append(("the model alone", loader.model_step_seconds, "seconds", "isolate: held_batches"))
    loads = f"of {workers} workers" if workers else "in the process that trains"
    return finding(
        f"{share(recipe.of_a_step(taken))} of a step is waiting for the data loader, which loads {loads}",
        [*evidence, ("workers of the loader", workers, "count", "recipe")],
        [] if loader is None else _isolated_workers(recipe, taken, loader),
        recipe.cost(recipe.of_steps(taken)),
    )


def _isolated_workers(recipe: IsolatedRecipe, taken: float, loader: LoaderAlone) -> list[Remedy]:
    schedule = recipe.found.schedule
    serial = loader.step_seconds * max(1, schedule.workers)
    cpu = serial if loader.cpu_seconds is None else min(serial, loader.cpu_seconds)
    model = loader.model_step_seconds or recipe.found.step_seconds - taken
    computes = float(min(schedule.threads, schedule.cores)) if schedule.device == "cpu" else 1.0
    load = StepLoad(model, computes, serial - cpu, cpu)
    workers = best_workers(load, schedule.cores)
    saved = min(taken, model + taken - loaded_step_seconds(load, workers, schedule.cores))
    if workers <= schedule.workers or saved <= 0:
        return []
    more = workers - schedule.workers
    costs = f"{more} more process{'es' if more > 1 else ''}, with memory of {'their' if more > 1 else 'its'} own"
    gain = recipe.gain(recipe.of_steps(saved), _workers_basis(workers, schedule.cores, computes))
    return [Remedy(_load_with(workers), {"train.dataloader_num_workers": workers}, costs, gain)]
