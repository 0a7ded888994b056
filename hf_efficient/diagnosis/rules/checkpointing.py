"""Activation checkpointing that is missing where memory is full, or on where memory is idle."""

from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import MATTERS, Case, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules.batching import NO_LINE, micro_batch, padding_growth
from hf_efficient.diagnosis.rules.memory import category_bytes, checkpointing_override, memory_room
from hf_efficient.records.findings import Remedy
from hf_efficient.text import share, size

_KEPT_TIMES = 30
"""What a layer keeps for its backward, in sizes of its input, which is all that a checkpointed one keeps. An estimate.
Korthikanti et al. 2022 (arXiv 2205.05198, section 4) count 34 bytes per value against 2 in 16 bits, 17 times, for a
layer without gate and adapter. A gated layer under LoRA keeps more: Llama-3.1-8B, 4 x 2048 tokens, LoRA, simulated on
2026-11-20: 84.3 GiB against 29.3 with checkpointing, whose inputs are 2 GiB: 28 times."""
_UNKNOWN = "what the layers keep, or the memory that is left, is not known"


@rule()
def checkpointing_missing(case: Case) -> Verdict:
    """Activation checkpointing is off, memory is four fifths full, mostly of activations, and rows are accumulated.
    What a larger micro-batch saves of its fixed cost must be more than the layers' second forward takes."""
    if case.settings("model").get("activation_checkpointing") is not False or case.accumulated < 2:
        return None
    room, kept = memory_room(case), category_bytes(case, "activations")
    if room is None or not kept:
        return abstains(_UNKNOWN, "EfficientTrainerMixin")
    if room.share < 0.8:
        return None
    held = micro_batch(case)
    if held is None:
        return abstains(*NO_LINE)
    forward = case.phase_seconds("forward") / case.compute_seconds
    logits = category_bytes(case, "logits") or 0
    freed = kept - kept // _KEPT_TIMES  # into which rows may grow
    each = kept // _KEPT_TIMES + 2 * logits
    fitting = [times for times in (1, 2, 4, 8, 16) if (times - 1) * each <= freed + room.fillable_bytes]
    times = max(times for times in fitting if case.accumulated % times == 0)
    # Every token's time grows by that of its second forward, the fixed part's too.
    saved_share = held.saved_share(times, padding_growth(case, times))
    saved_share -= forward * (1 - saved_share)
    saved = saved_share * (case.compute_seconds + case.phase_seconds("bookkeeping"))
    if times < 2 or case.share(saved) < MATTERS:
        return None
    overrides: dict[str, Any] = {
        **checkpointing_override(case, True),
        "train.per_device_train_batch_size": case.rows * times,
        "train.gradient_accumulation_steps": case.accumulated // times,
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
    return finding(
        f"activations fill the memory ({size(kept)}), so that {case.accumulated} micro-batches are accumulated; "
        f"{share(held.fixed_share)} of their time does not grow with their tokens",
        [
            ("activations that a micro-batch keeps", kept, "bytes", "run.json: memory.categories.activations"),
            ("freed by checkpointing (estimate)", freed, "bytes", f"{_KEPT_TIMES - 1} of {_KEPT_TIMES} parts"),
            ("fixed part of a micro-batch's time", held.fixed_share, "share", "steps.jsonl"),
            ("forward, of forward and backward", forward, "share", "steps.jsonl: phase_seconds"),
        ],
        [remedy],
        case.cost(saved),
        confidence="possible",
        explains=["accumulation", "small_micro_batch"],
    )


@rule()
def checkpointing_unneeded(case: Case) -> Verdict:
    """Activation checkpointing is on, and what layers would keep without it fits four fifths of the idle memory."""
    if not case.settings("model").get("activation_checkpointing"):
        return None
    room, kept = memory_room(case), category_bytes(case, "activations")
    if room is None or not kept:
        return abstains(_UNKNOWN, "EfficientTrainerMixin")
    again = _recomputed_seconds(case)
    if again is None:
        return abstains("forward and backward are not timed apart", "EfficientTrainerMixin")
    more = (_KEPT_TIMES - 1) * kept
    if more > room.fillable_bytes or case.share(again) < MATTERS:
        return None
    basis = (
        "the layers' forward is not computed a second time; without checkpointing they are taken to keep "
        f"{_KEPT_TIMES} times their inputs, {size(more)} more (hf-efficient plan computes it exactly)"
    )
    remedy = Remedy(
        "switch activation checkpointing off",
        dict(checkpointing_override(case, False)),
        f"about {size(more)} more memory",
        case.gain(again, basis),
    )
    return finding(
        f"activation checkpointing computes every layer twice, {share(case.share(again))} of the loop, though "
        f"{size(room.idle_bytes)} of memory are idle",
        [
            ("forward computed again, as part of the loop", case.share(again), "share", "steps.jsonl: forward"),
            ("FLOPs beyond the model's and padding's", case.flops_beyond, "share", "run.json: work"),
            ("idle memory at the peak", room.idle_bytes, "bytes", room.source),
            ("inputs that the checkpointed layers keep", kept, "bytes", "run.json: memory.categories.activations"),
            ("what they would keep besides (estimate)", more, "bytes", f"{_KEPT_TIMES - 1} times their inputs"),
        ],
        [remedy],
        case.cost(again),
        confidence="likely",
    )


def _recomputed_seconds(case: Case) -> float | None:
    """Of the loop, the time of the second forward: the shorter of two estimates; None without forward and backward. By
    time: as long as the layers' part of the first, without the head's share of the FLOPs. By FLOPs: their share of
    forward and backward. Hand-worked: forward 100 s, backward 260 s, a quarter of the FLOPs recomputed, all weights
    trained, so that a third of the other FLOPs is forward: recompute over forward = 0.25 / (0.75 / 3) = 1, so 100 s by
    time; 90 s by FLOPs."""
    first = case.first
    if not first.phase("forward").any():
        return None
    # The host runs ahead of a device: its own events count.
    forward = case.over_the_run(np.asarray(first.device_seconds.get("forward", first.phase("forward"))))
    share = case.flops_beyond  # the most that the second forward can be
    if share is None:
        return forward
    of_forward = share / ((1 - share) / (2 if case.is_mostly_frozen else 3)) if share < 1 else 1.0
    return min(forward * min(1.0, of_forward), case.compute_seconds * share)
