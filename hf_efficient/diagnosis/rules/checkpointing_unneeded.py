"""Activation checkpointing though memory is idle."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import category_bytes, memory_room
from hf_efficient.diagnosis.recompute import (
    KEPT_TIMES,
    checkpointing_override,
    recompute_share,
    recomputed_seconds,
)
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share, size

__all__ = ["checkpointing_unneeded"]


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
