"""Memory so full that micro-batches stay tiny, where activation checkpointing would make room for larger ones.

Activation checkpointing though memory is idle.
"""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.diagnosis.rules.batching import MOST_TIMES, MicroBatch, micro_batch, padding_growth
from hf_efficient.diagnosis.rules.memory import (
    KEPT_TIMES,
    category_bytes,
    checkpointing_override,
    memory_room,
    recompute_share,
    recomputed_seconds,
)
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.text import share, size

_FULL = 0.8


def checkpointing_missing(case: Case) -> Verdict:
    """It is off, four fifths of the memory are taken, most of what could go is activations, and rows are accumulated.

    What a larger micro-batch saves of its fixed cost must be more than the layers' second forward takes.
    """
    first = case.first
    if first is None:
        return abstains("checkpointing_missing", NO_STEPS)
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    if case.settings("model").get("activation_checkpointing") is not False or accumulated < 2:
        return None
    room, kept = memory_room(case), category_bytes(case, "activations")
    if room is None or not kept:
        why = "what the layers keep, or the memory that is left, is not known"
        return abstains("checkpointing_missing", why, "EfficientTrainerMixin")
    if room.share < _FULL:
        return None
    held = micro_batch(case)
    if held is None:
        why = "what a micro-batch costs by itself cannot be told: too few steps, or their tokens hardly differ"
        return abstains("checkpointing_missing", why, "hf-efficient diagnose RECIPE --isolate")
    return _judged(case, held, kept, room.fillable_bytes)


def _judged(case: Case, held: MicroBatch, kept: int, fillable: int) -> Finding | None:
    """Rows may grow into what the activations leave: all but a thirtieth of theirs."""
    first = case.first
    assert first is not None
    forward = float(first.phase("forward").sum()) / float(first.compute_seconds.sum())
    logits = category_bytes(case, "logits") or 0
    freed = kept - kept // KEPT_TIMES
    times = 1
    while 2 * times <= min(MOST_TIMES, held.accumulated) and held.accumulated % (2 * times) == 0:
        if (2 * times - 1) * (kept // KEPT_TIMES + 2 * logits) > freed + fillable:
            break
        times *= 2
    # Every token's time grows by that of its second forward, the fixed part's too.
    growth = padding_growth(case, held.rows, times)
    saved_share = held.saved_share(times, growth) - forward * (1 - held.saved_share(times, growth))
    within = float((first.compute_seconds + first.phase("bookkeeping")).sum()) / float(first.wall_seconds.sum())
    saved = saved_share * within * case.loop_seconds
    if times < 2 or case.share(saved) < MATTERS:
        return None
    overrides: dict[str, Any] = {
        **checkpointing_override(case, True),
        "train.per_device_train_batch_size": held.rows * times,
        "train.gradient_accumulation_steps": held.accumulated // times,
    }
    basis = (
        f"what a micro-batch costs by itself is paid once for {times} times the rows; every layer's forward is "
        f"computed twice, {share(forward)} more"
    )
    remedy = Remedy(
        f"checkpoint the activations, and take {times} times the rows into a micro-batch",
        overrides,
        "the layers' forward is computed twice; the global batch stays the same",
        case.gain(saved, basis, freed),
    )
    return Finding(
        rule="checkpointing_missing",
        title=f"activations fill the memory ({size(kept)}), so that {held.accumulated} micro-batches are accumulated; "
        f"{share(held.fixed_share)} of their time does not grow with their tokens",
        severity="warning",
        confidence="possible",
        evidence=[
            Evidence("activations that a micro-batch keeps", kept, "bytes", "run.json: memory.categories.activations"),
            Evidence("freed by checkpointing (estimate)", freed, "bytes", f"{KEPT_TIMES - 1} of {KEPT_TIMES} parts"),
            Evidence("fixed part of a micro-batch's time", held.fixed_share, "share", "steps.jsonl"),
            Evidence("forward, of forward and backward", forward, "share", "steps.jsonl: phase_seconds"),
        ],
        cost=case.cost(saved),
        remedies=[remedy],
        explains=["accumulation", "small_micro_batch"],
    )


def checkpointing_unneeded(case: Case) -> Verdict:
    """It is on, and what the layers would keep without it fits four fifths of the memory that lies idle."""
    if case.first is None:
        return abstains("checkpointing_unneeded", NO_STEPS)
    if not case.settings("model").get("activation_checkpointing"):
        return None
    room, kept = memory_room(case), category_bytes(case, "activations")
    if room is None or not kept:
        why = "what the layers keep, or the memory that is left, is not known"
        return abstains("checkpointing_unneeded", why, "EfficientTrainerMixin")
    again = recomputed_seconds(case)
    if again is None:
        return abstains("checkpointing_unneeded", "forward and backward are not told apart", "EfficientTrainerMixin")
    more = (KEPT_TIMES - 1) * kept
    if more > room.fillable_bytes or case.share(again) < MATTERS:
        return None
    basis = (
        "the layers' forward is not computed a second time; without checkpointing they are taken to keep "
        f"{KEPT_TIMES} times their inputs, {size(more)} more (hf-efficient plan tells it exactly)"
    )
    remedy = Remedy(
        "switch activation checkpointing off",
        dict(checkpointing_override(case, False)),
        f"about {size(more)} more memory",
        case.gain(again, basis),
    )
    evidence = [
        Evidence("forward computed again, as part of the loop", case.share(again), "share", "steps.jsonl: forward"),
        Evidence("idle memory at the peak", room.idle_bytes, "bytes", room.source),
        Evidence("inputs that the checkpointed layers keep", kept, "bytes", "run.json: memory.categories.activations"),
        Evidence("what they would keep besides (estimate)", more, "bytes", f"{KEPT_TIMES - 1} times their inputs"),
    ]
    of_flops = recompute_share(case)
    if of_flops is not None:
        evidence.insert(1, Evidence("FLOPs beyond the model's and padding's", of_flops, "share", "run.json: work"))
    return Finding(
        rule="checkpointing_unneeded",
        title=f"activation checkpointing computes every layer twice, {share(case.share(again))} of the loop, though "
        f"{size(room.idle_bytes)} of memory lie idle",
        severity="warning",
        confidence="likely",
        evidence=evidence,
        cost=case.cost(again),
        remedies=[remedy],
    )
