"""Parameters that are to be trained and get no gradient."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy

__all__ = ["no_gradient"]

_NAMED = 3


def no_gradient(case: Case) -> Verdict:
    """At the first update, tensors with ``requires_grad`` had none: the forward does not reach them."""
    counted = case.facts.get("silent_failures", {})
    if "without_gradient" not in counted:
        if case.first is None:
            return abstains("no_gradient", NO_STEPS)
        why = "gradients were not looked at: they are not on the parameters under DeepSpeed and FSDP"
        return abstains("no_gradient", why, "EfficientTrainerMixin, or AccountCallback")
    without, trainable = int(counted["without_gradient"]), int(counted["trainable_parameters"])
    if not without:
        return None
    names = [str(name) for name in counted.get("names_without_gradient", ())]
    named = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
    experts = names and all("expert" in name for name in names)
    source = "spans.jsonl: silent_failures"
    return Finding(
        rule="no_gradient",
        title=f"{without} of {trainable} trainable tensors get no gradient: {named}",
        severity="warning" if experts else "critical",
        confidence="possible" if experts else "measured",
        evidence=[
            Evidence("trainable tensors without gradient", without, "count", f"{source}.without_gradient"),
            Evidence("trainable tensors", trainable, "count", f"{source}.trainable_parameters"),
            Evidence("their names", ", ".join(names) or "not known", "", f"{source}.names_without_gradient"),
        ],
        remedies=[_remedy(bool(experts))],
    )


def _remedy(experts: bool) -> Remedy:
    if experts:
        return Remedy("nothing, if these experts are chosen by later batches; else look at the router's balance")
    return Remedy(
        "freeze them (requires_grad_(False)) if the forward does not need them; else find what cuts the graph before "
        "them: a detach, a no_grad, an operator on .data, or checkpointing without enable_input_require_grads()"
    )
