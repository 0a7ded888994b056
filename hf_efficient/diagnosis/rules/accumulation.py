"""Gradients accumulated over small micro-batches, though memory lies idle for larger ones."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import memory_room
from hf_efficient.diagnosis.micro_batch import MOST_TIMES, MicroBatch, fitting_times, micro_batch, padding_growth
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["accumulation"]

_GROUPED = {"train.train_sampling_strategy": "group_by_length"}


def accumulation(case: Case) -> Verdict:
    """The same global batch in fewer and larger micro-batches would save a twentieth of the loop or more."""
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    if case.first is None:
        return abstains("accumulation", NO_STEPS)
    if accumulated < 2:
        return None
    most = fitting_times(case, min(MOST_TIMES, accumulated))
    if most is None:
        return abstains("accumulation", "memory is not known by what it is used for", "EfficientTrainerMixin")
    if most < 2:
        return None
    held = micro_batch(case)
    if held is None:
        why = "what a micro-batch costs by itself cannot be told: too few steps, or their tokens hardly differ"
        return abstains("accumulation", why, "hf-efficient diagnose RECIPE --isolate")
    remedies = _remedies(case, held, most)
    if not remedies:
        return None
    gain = remedies[0].gain
    assert gain is not None
    return Finding(
        rule="accumulation",
        title=f"a step accumulates {accumulated} micro-batches of {_rows(held.rows)}, {share(held.fixed_share)} of "
        "whose time does not grow with their tokens, and idle memory holds larger ones",
        severity="warning",
        confidence="likely",
        evidence=_evidence(case, held),
        cost=case.cost(gain.seconds),
        remedies=remedies,
    )


def _evidence(case: Case, held: MicroBatch) -> list[Evidence]:
    line = "steps.jsonl: forward and backward over tokens"
    found = [
        Evidence("micro-batches of a step", held.accumulated, "count", "spans.jsonl: settings.arguments"),
        Evidence("rows of a micro-batch", held.rows, "count", "spans.jsonl: settings.arguments"),
        Evidence("time of a micro-batch", held.seconds, "seconds", "steps.jsonl: phase_seconds"),
        Evidence("of it without any tokens", held.fixed_seconds, "seconds", line),
        Evidence("Trainer's own work around it", held.around_seconds, "seconds", "steps.jsonl: phase_seconds"),
    ]
    room = memory_room(case)
    if room is not None:
        found.append(Evidence("idle memory at the peak", room.idle_bytes, "bytes", room.source))
    return found


def _remedies(case: Case, held: MicroBatch, most: int) -> list[Remedy]:
    """As the examples come, and with those of like length together, where that saves a twentieth more."""
    plain, grouped = _remedy(case, held, most, grouped=False), _remedy(case, held, most, grouped=True)
    both = [one for one in (plain, grouped) if one is not None]
    if plain is not None and grouped is not None:
        shares = [one.gain.share or 0.0 for one in both if one.gain is not None]
        if shares[1] < shares[0] + MATTERS:
            return [plain]
        return [grouped, plain]
    return both


def _remedy(case: Case, held: MicroBatch, most: int, *, grouped: bool) -> Remedy | None:
    first = case.first
    assert first is not None
    if grouped and not case.can_be_grouped:
        return None
    choices = [times for times in (2, 4, 8, 16) if times <= most and held.accumulated % times == 0]
    by_saved = {
        times: held.saved_share(times, padding_growth(case, held.rows, times, grouped=grouped)) for times in choices
    }
    best = max(by_saved, key=lambda times: by_saved[times], default=1)
    within = float((first.compute_seconds + first.phase("bookkeeping")).sum()) / float(first.wall_seconds.sum())
    saved = by_saved.get(best, 0.0) * within * case.loop_seconds
    if case.share(saved) < MATTERS:
        return None
    overrides: dict[str, Any] = {
        "train.per_device_train_batch_size": held.rows * best,
        "train.gradient_accumulation_steps": held.accumulated // best,
    }
    what = f"take {best} times the rows into a micro-batch, and accumulate {held.accumulated // best}"
    costs = "activations of more rows; the global batch stays the same"
    if grouped:
        overrides |= _GROUPED
        what += ", with examples of like length together"
        costs += "; the examples come in another order"
    growth = padding_growth(case, held.rows, best, grouped=grouped)
    basis = f"what a micro-batch costs by itself is paid once for {best} times the rows"
    if abs(growth - 1) >= 0.01:
        basis += f", which hold {growth:.2f} times the positions for the same tokens on these lengths"
    return Remedy(what, overrides, costs, case.gain(saved, basis))


def _rows(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"
