"""Communication between ranks that no computation covers."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.diagnosis.strategy import strategy_of
from hf_efficient.diagnosis.traced import traced_device
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["exposed_communication"]

_TOO_MUCH = 0.1
_TRACE = "profile/trace.rank0: communication"


def exposed_communication(case: Case) -> Verdict:
    """In a tenth of the traced time or more the device only communicates; the wait for a slow rank is part of it."""
    if case.first is None:
        return abstains("exposed_communication", NO_STEPS)
    if len(case.account.ranks) < 2:
        return None
    device = traced_device(case)
    if device is None:
        if not case.on_cuda:
            return None  # gloo's threads leave no events
        why = "what of the communication the computation covers is not known"
        return abstains("exposed_communication", why, "efficiency.profile.trace")
    found = device.communication
    if found is None or found.exposed_share < _TOO_MUCH:
        return None
    lost = found.exposed_share * case.account.time.training_seconds
    return Finding(
        rule="exposed_communication",
        title=f"in {share(found.exposed_share)} of the time the device communicates, and computes nothing",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("communication that nothing covers", found.exposed_seconds, "seconds", _TRACE),
            Evidence("of the traced time", found.exposed_share, "share", _TRACE),
            Evidence("communication, of which is covered", found.overlap_share, "share", _TRACE),
            Evidence("kernels that communicate", found.kernels, "count", _TRACE),
            Evidence("ranks", len(case.account.ranks), "count", "run.json: ranks"),
        ],
        cost=case.cost(lost),
        remedies=_remedies(case, lost),
    )


def _remedies(case: Case, lost: float) -> list[Remedy]:
    """Gradients are averaged once in a step where each rank holds them whole: then half as often."""
    strategy = strategy_of(case)
    found = []
    if strategy in ("ddp", "zero1"):
        accumulated = int(case.argument("gradient_accumulation_steps") or 1)
        overrides: dict[str, Any] = {"train.gradient_accumulation_steps": 2 * accumulated}
        costs = "a step holds twice the examples: half as many steps, and the learning rate may want to grow"
        basis = "gradients are averaged half as often; each time as long as now"
        found.append(Remedy("accumulate twice as many micro-batches", overrides, costs, case.gain(lost / 2, basis)))
    if strategy in ("zero3", "fsdp2"):
        found.append(
            Remedy("keep the weights whole on each rank, where they fit: zero2 or ddp in place of " + strategy)
        )
    trained, parameters = (case.settings("model").get(name) for name in ("trainable_parameters", "parameters"))
    if strategy in ("ddp", "zero1", "zero2") and trained and trained == parameters:
        found.append(Remedy("average the gradients in bfloat16 (DDP's bf16_compress_hook): half of the bytes"))
    return found
