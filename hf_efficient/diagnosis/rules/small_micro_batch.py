"""Micro-batches so small that what each costs by itself outweighs its tokens."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.cores import core_wait
from hf_efficient.diagnosis.micro_batch import MOST_TIMES, MicroBatch, fitting_times, micro_batch, padding_growth
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.diagnosis.rules.accumulation import accumulation
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["small_micro_batch"]

_TOO_MUCH = 0.3
_BUSY = 0.2
_LEAST_BATCHES = 8
_ISOLATE = "hf-efficient diagnose RECIPE --isolate"


def small_micro_batch(case: Case) -> Verdict:
    """The fixed part of a micro-batch is 30% of its time or more, and larger ones would save a twentieth of the loop.

    Where they can be had out of the accumulation, ``accumulation`` says so. A larger step has fewer optimizer steps for
    the same tokens, and, unless examples are put together by length, more padding.
    """
    if case.first is None:
        return abstains("small_micro_batch", NO_STEPS)
    if isinstance(accumulation(case), Finding):
        return None
    wait = core_wait(case)
    if wait is not None and wait.share >= _BUSY:
        why = f"other processes held the cores in {share(wait.share)} of the time, which a line over tokens cannot tell"
        return abstains("small_micro_batch", why, _ISOLATE)
    held = micro_batch(case)
    if held is None:
        why = "what a micro-batch costs by itself cannot be told: too few steps, or their tokens hardly differ"
        return abstains("small_micro_batch", why, _ISOLATE)
    if held.fixed_share < _TOO_MUCH:
        return None
    remedies = _remedies(case, held)
    if not remedies:
        return None
    return Finding(
        rule="small_micro_batch",
        title=f"micro-batches of {held.rows} {'row' if held.rows == 1 else 'rows'} spend {share(held.fixed_share)} of "
        "their time on what does not grow with their tokens",
        severity="warning",
        confidence="likely",
        evidence=_evidence(held),
        cost=case.cost(_of_the_loop(case, held.fixed_share)),
        remedies=remedies,
    )


def _evidence(held: MicroBatch) -> list[Evidence]:
    line = "steps.jsonl: forward and backward over tokens"
    return [
        Evidence("fixed time of a micro-batch", held.fixed_seconds, "seconds", line),
        Evidence("time of a micro-batch", held.seconds, "seconds", "steps.jsonl: phase_seconds"),
        Evidence("its share", held.fixed_share, "share", line),
        Evidence("tokens of a micro-batch", held.tokens, "tokens", "steps.jsonl: tokens.processed"),
        Evidence("rows of a micro-batch", held.rows, "count", "spans.jsonl: settings.arguments"),
    ]


def _remedies(case: Case, held: MicroBatch) -> list[Remedy]:
    """With examples of like length together, and as they come; the one that gives more first."""
    both = [_remedy(case, held, grouped=grouped) for grouped in (False, True)]
    found = [one for one in both if one is not None]
    return sorted(found, key=lambda one: -(one.gain.share or 0.0) if one.gain is not None else 0.0)


def _remedy(case: Case, held: MicroBatch, *, grouped: bool) -> Remedy | None:
    """None where no size saves a twentieth, or grouping would change nothing."""
    if grouped and (not case.can_be_grouped or _alike(case, held)):
        return None
    most = min(fitting_times(case, MOST_TIMES) or MOST_TIMES, _by_the_data(case, held))
    saved = {
        times: _saved_seconds(case, held, times, padding_growth(case, held.rows, times, grouped=grouped))
        for times in (2, 4, 8, 16)
        if times <= most
    }
    best = _smallest_that_does(saved)
    if best is None or case.share(saved[best]) < MATTERS:
        return None
    kept = max(1, held.accumulated // best)
    overrides: dict[str, Any] = {"train.per_device_train_batch_size": held.rows * best}
    if held.accumulated > 1:
        overrides["train.gradient_accumulation_steps"] = kept
    what, costs = f"take {best} times the rows into a micro-batch", "activations of more rows"
    larger = kept * best / held.accumulated
    if larger > 1:
        costs += f"; a step holds {larger:g} times the examples: an epoch has fewer steps, and the learning rate may "
        costs += "want to grow"
    if grouped:
        overrides["train.train_sampling_strategy"] = "group_by_length"
        what += ", with examples of like length together"
        costs += "; the examples come in another order"
    return Remedy(what, overrides, costs, case.gain(saved[best], _basis(case, held, best, grouped)))


def _basis(case: Case, held: MicroBatch, times: int, grouped: bool) -> str:
    growth = padding_growth(case, held.rows, times, grouped=grouped)
    told = f"what a micro-batch costs by itself is paid once for {times} times the rows"
    if abs(growth - 1) < 0.01:
        return told
    return f"{told}, which hold {growth:.2f} times the positions for the same tokens on these lengths"


def _alike(case: Case, held: MicroBatch) -> bool:
    """Whether grouping by length would leave the padding what it is."""
    return abs(padding_growth(case, held.rows, 2) - padding_growth(case, held.rows, 2, grouped=True)) < 0.02


def _by_the_data(case: Case, held: MicroBatch) -> int:
    """So many times the rows that an epoch still has eight micro-batches; ``MOST_TIMES`` of data of unknown length."""
    examples = case.facts.get("loader", {}).get("rows")
    return MOST_TIMES if not examples else max(1, int(examples) // (_LEAST_BATCHES * held.rows))


def _smallest_that_does(saved: dict[int, float]) -> int | None:
    """The fewest rows that give nine tenths of the most that any number of them does."""
    most = max(saved.values(), default=0.0)
    return next((times for times, seconds in saved.items() if seconds > 0 and seconds >= 0.9 * most), None)


def _saved_seconds(case: Case, held: MicroBatch, times: int, growth: float) -> float:
    """Over the run: of the micro-batches, and of the optimizer's and the logs' time where a step holds more."""
    first = case.first
    assert first is not None
    saved = _of_the_loop(case, held.saved_share(times, growth), "bookkeeping")
    larger = max(1, held.accumulated // times) * times / held.accumulated
    around = sum(float(first.phase(name).sum()) for name in ("optimizer", "logging"))
    return saved + case.loop_seconds * around / float(first.wall_seconds.sum()) * (1 - 1 / larger)


def _of_the_loop(case: Case, part: float, *others: str) -> float:
    """Seconds over the run of a part of forward and backward, and of other phases."""
    first = case.first
    assert first is not None
    within = float(first.compute_seconds.sum()) + sum(float(first.phase(name).sum()) for name in others)
    return case.loop_seconds * within / float(first.wall_seconds.sum()) * part
