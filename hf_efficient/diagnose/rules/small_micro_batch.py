"""Micro-batches so small that what each costs by itself outweighs its tokens."""

from __future__ import annotations

import numpy as np

from hf_efficient.diagnose.case import Case, Column, StepColumns
from hf_efficient.diagnose.larger_micro_batch import larger_micro_batch
from hf_efficient.diagnose.rule import NO_STEPS, Verdict, abstains
from hf_efficient.diagnose.rules.accumulation import accumulation
from hf_efficient.estimate.batch_time import BatchTime, batch_time
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["small_micro_batch"]

_TOO_MUCH = 0.3


def small_micro_batch(case: Case) -> Verdict:
    """The fixed part of a micro-batch is 30% of its time or more: larger ones pay it less often.

    Where they can be had out of the accumulation, ``accumulation`` says so.
    """
    first = case.first
    if first is None:
        return abstains("small_micro_batch", NO_STEPS)
    if isinstance(accumulation(case), Finding):
        return None
    line = _line(first)
    if line is None:
        why = "the micro-batches hardly differ in tokens, so that their fixed cost cannot be told from the rest"
        return abstains("small_micro_batch", why, "hf-efficient diagnose RECIPE --isolate")
    steady = first.steady
    micro_batches = float(first.micro_batches[steady].mean())
    computed = float(first.compute_seconds[steady].mean()) / micro_batches
    tokens = float(first.processed[steady].mean()) / micro_batches
    fixed = min(line.fixed_seconds, computed)
    taken = fixed / computed if computed > 0 else 0.0
    if taken < _TOO_MUCH:
        return None
    rows = int(case.argument("per_device_train_batch_size") or 1)
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    whole = _over_the_run(case, first.compute_seconds) * taken
    evidence = [
        Evidence("fixed time of a micro-batch", fixed, "seconds", "steps.jsonl: forward and backward over tokens"),
        Evidence("time of a micro-batch", computed, "seconds", "steps.jsonl: phase_seconds"),
        Evidence("its share", taken, "share", "steps.jsonl: forward and backward over tokens"),
        Evidence("tokens of a micro-batch", tokens, "tokens", "steps.jsonl: tokens.processed"),
        Evidence("rows of a micro-batch", rows, "count", "spans.jsonl: settings.arguments"),
    ]
    return Finding(
        rule="small_micro_batch",
        title=f"micro-batches of {rows} {'row' if rows == 1 else 'rows'} spend {share(taken)} of their time on what "
        "does not grow with their tokens",
        severity="warning",
        confidence="likely",
        evidence=evidence,
        cost=case.cost(whole),
        remedies=[_remedy(case, first, rows, accumulated, whole, fixed, computed)],
    )


def _line(first: StepColumns) -> BatchTime | None:
    steady = first.steady
    counts = np.maximum(first.micro_batches[steady], 1)
    return batch_time(first.compute_seconds[steady] / counts, first.processed[steady] / counts)


def _over_the_run(case: Case, seconds: Column) -> float:
    first = case.first
    assert first is not None
    return case.loop_seconds * float(seconds.sum()) / float(first.wall_seconds.sum())


def _remedy(
    case: Case, first: StepColumns, rows: int, accumulated: int, whole: float, fixed: float, computed: float
) -> Remedy:
    change = larger_micro_batch(rows, accumulated, fixed, computed)
    saved = whole * (1 - 1 / change.times)
    if change.growth > 1:
        around = first.step_seconds - first.compute_seconds - first.phase("data_wait")
        saved += _over_the_run(case, around) * (1 - 1 / change.growth)
    basis = f"what a micro-batch costs by itself is paid once for {change.times} times the rows, its tokens as measured"
    what = f"take {change.times} times the rows into a micro-batch"
    return Remedy(what, change.overrides, change.costs, case.gain(saved, basis))
