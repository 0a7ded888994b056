"""Updates that the gradient scaler of float16 leaves out."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["scaler_skips"]

_TOO_MANY = 0.05
_FINDING_ITS_SCALE = 5
_MOST = 0.5


def scaler_skips(case: Case) -> Verdict:
    """A twentieth of the updates or more, beside the few with which it finds its scale, had infinite gradients."""
    if case.first is None:
        return abstains("scaler_skips", NO_STEPS)
    if not case.argument("fp16"):
        return None
    counted = case.facts.get("silent_failures", {})
    if not counted.get("updates") or "skipped_updates" not in counted:
        return abstains("scaler_skips", "skipped updates are not counted", "EfficientTrainerMixin, or AccountCallback")
    skipped, updates = int(counted["skipped_updates"]), int(counted["updates"])
    taken = skipped / updates
    if skipped <= _FINDING_ITS_SCALE or taken < _TOO_MANY:
        return None
    remedies = [Remedy("a lower learning rate, or a smaller max_grad_norm, if the loss grows before it skips")]
    if case.settings("device").get("supports_bf16"):
        overrides = {"train.fp16": False, "train.bf16": True}
        gain = case.gain(case.loop_seconds * taken, "every update counts")
        costs = "bfloat16 keeps 8 bits where float16 keeps 11"
        remedies.insert(0, Remedy("train in bfloat16, which needs no scaler", overrides, costs, gain))
    source = "spans.jsonl: silent_failures"
    return Finding(
        rule="scaler_skips",
        title=f"{share(taken)} of the updates are skipped: gradients overflow in float16",
        severity="critical" if taken >= _MOST else "warning",
        confidence="measured",
        evidence=[
            Evidence("skipped updates", skipped, "count", f"{source}.skipped_updates"),
            Evidence("updates", updates, "count", f"{source}.updates"),
        ],
        cost=case.cost(case.loop_seconds * taken),
        remedies=remedies,
    )
