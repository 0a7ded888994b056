"""What activation checkpointing takes: the forward of the layers, computed a second time in the backward."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case

__all__ = ["KEPT_TIMES", "checkpointing_override", "recompute_share", "recomputed_seconds"]

KEPT_TIMES = 30
"""What a layer keeps for its backward, in sizes of its input, which is all that a checkpointed one keeps.

An estimate. Korthikanti et al. 2022 (arXiv 2205.05198, section 4) count 34 bytes per value against 2 in 16 bits, 17
times, for a layer without gate and adapter. A gated layer under LoRA keeps more: Llama-3.1-8B, 4 x 2048 tokens, LoRA,
simulated on 2026-11-20: 84.3 GiB against 29.3 with checkpointing, whose inputs are 2 GiB: 28 times.
"""


def recompute_share(case: Case) -> float | None:
    """Of the FLOPs computed, those of the second forward; None where FLOPs are not counted.

    What is computed beyond the model's FLOPs is padding, masked pairs and recompute. Padding is taken out by its share
    of the positions. Masked pairs stay in: this is the most that it can be.

    Hand-worked: 800 computed, 300 of the model, half of the positions padding: 300 / 0.5 = 600; 200 / 800 = 0.25.
    """
    work, padded = case.account.work, case.account.tokens.padding_share
    if not work.hardware_flops or not work.model_flops or padded is None or padded >= 1:
        return None
    return max(0.0, 1 - work.model_flops / (1 - padded) / work.hardware_flops)


def recomputed_seconds(case: Case) -> float | None:
    """Of the loop, the time of the second forward: the shorter of two estimates; None without forward and backward.

    By time: the first forward took as long, as far as it was the layers' and not the head's; the head's share is that
    of the FLOPs. By FLOPs: their share of forward and backward.

    Hand-worked: forward 100 s, backward 260 s, a quarter of the FLOPs recomputed, all weights trained, so that a third
    of the other FLOPs is forward: recompute over forward = 0.25 / (0.75 / 3) = 1, so 100 s by time; 90 s by FLOPs.
    """
    first = case.first
    if first is None or not first.phase("forward").any():
        return None
    over_the_run = case.loop_seconds / float(first.wall_seconds.sum())
    forward = _seconds(case, "forward") * over_the_run
    share = recompute_share(case)
    if share is None:
        return forward
    computed = float(first.compute_seconds.sum()) * over_the_run
    of_forward = share / ((1 - share) / (2 if _is_mostly_frozen(case) else 3)) if share < 1 else 1.0
    return min(forward * min(1.0, of_forward), computed * share)


def checkpointing_override(case: Case, on: bool) -> dict[str, bool]:
    """Under the name that the run itself used; the newer one counts where it is given."""
    newer = case.argument("activation_checkpointing") is not None
    return {f"train.{'activation_checkpointing' if newer else 'gradient_checkpointing'}": on}


def _is_mostly_frozen(case: Case) -> bool:
    """An adapter is trained: the backward then has about as many FLOPs as the forward, else twice as many."""
    model = case.settings("model")
    trained, all_of_them = model.get("trainable_parameters"), model.get("parameters")
    return bool(trained and all_of_them and trained < 0.5 * all_of_them)


def _seconds(case: Case, phase: str) -> float:
    """Of the records of rank 0; on the device where its own events were read, since the host runs ahead of it."""
    first = case.first
    assert first is not None
    device = first.device_seconds.get(phase)
    return float(first.phase(phase).sum()) if device is None else float(device[device == device].sum())
