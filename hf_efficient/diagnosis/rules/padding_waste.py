"""Positions that are padding."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.padding import grouped_padding_share
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["padding_waste"]

_TOO_MUCH = 0.15


def padding_waste(case: Case) -> Verdict:
    """A seventh of the positions or more is padding: what grouping by length or packing would give on these lengths."""
    first, padded = case.first, case.account.tokens.padding_share
    if first is None:
        return abstains("padding_waste", NO_STEPS)
    if padded is None:
        return abstains("padding_waste", "tokens are not counted", "EfficientTrainerMixin in place of the callback")
    if padded < _TOO_MUCH:
        return None
    computed = float(first.compute_seconds.sum()) * case.loop_seconds / float(first.wall_seconds.sum())
    wasted = computed * padded
    sequences = case.account.sequences
    evidence = [
        Evidence("padding", padded, "share", "run.json: tokens.padding_share"),
        Evidence("time in forward and backward", computed, "seconds", "steps.jsonl: phase_seconds"),
    ]
    for name in ("shortest_tokens", "mean_tokens", "longest_tokens"):
        value = getattr(sequences, name)
        if value is not None:
            evidence.append(Evidence(name.replace("_", " "), value, "tokens", f"run.json: sequences.{name}"))
    return Finding(
        rule="padding_waste",
        title=f"{share(padded)} of the positions that are computed are padding",
        severity="warning" if case.share(wasted) >= 0.1 else "info",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(wasted),
        remedies=_remedies(case, computed, padded),
    )


def _remedies(case: Case, computed: float, padded: float) -> list[Remedy]:
    """Grouping keeps the training what it is; packing changes what a step holds."""
    found = []
    grouped = grouped_padding_share(case.account.sequences.length_buckets, case.argument("per_device_train_batch_size"))
    if grouped is not None and case.can_be_grouped and grouped < padded:
        left = (1 - padded) / (1 - grouped)  # positions for the same tokens, against those of now
        basis = f"{share(grouped)} of padding on these lengths, time by positions computed"
        overrides: dict[str, Any] = {"train.train_sampling_strategy": "group_by_length"}
        costs = "the examples come in another order, those of like length together"
        gain = case.gain(computed * (1 - left), basis)
        found.append(Remedy("put examples of like length into a batch", overrides, costs, gain))
    is_sft = case.argument("packing") is False and case.argument("max_length") is not None
    if is_sft and (case.recipe is None or case.recipe.get("method", "sft") == "sft"):
        overrides = {"train.packing": True}
        gain = case.gain(computed * padded, "no padding, time by positions computed")
        costs = "a step holds more examples, so that an epoch has fewer steps"
        found.append(Remedy("pack examples into rows of the full length", overrides, costs, gain))
    return found
