"""Kernels so short that the device waits for the host to launch the next one."""

from __future__ import annotations

from typing import Any

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.launches import LaunchWaits, launch_waits
from hf_efficient.diagnosis.micro_batch import MOST_TIMES, fitting_times
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.diagnosis.rules.accumulation import accumulation
from hf_efficient.diagnosis.rules.small_micro_batch import small_micro_batch
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["launch_bound"]

_TOO_MUCH = 0.15
_FUSED = 0.5
"""Of the waits, what torch.compile is taken to save: it fuses the operators between products. An estimate."""


def launch_bound(case: Case) -> Verdict:
    """The device waits for launches in 15% of its time or more; small micro-batches are told by their own rules."""
    if case.first is None:
        return abstains("launch_bound", NO_STEPS)
    if not case.on_cuda or isinstance(accumulation(case), Finding) or isinstance(small_micro_batch(case), Finding):
        return None
    waits = launch_waits(case)
    if waits is None:
        return abstains("launch_bound", "what the device waits for is not known", "efficiency.profile.trace")
    if not waits.is_waiting or (waits.share is not None and waits.share < _TOO_MUCH):
        return None
    told = "the host needs as long to launch a step's kernels as the device has for them"
    if waits.share is not None:
        told = f"the device waits for the next kernel to be launched in {share(waits.share)} of its time"
    computed = float(case.first.compute_seconds.sum()) / float(case.first.wall_seconds.sum()) * case.loop_seconds
    lost = None if waits.share is None else waits.share * computed
    evidence = [*waits.evidence, Evidence("forward and backward", computed, "seconds", "steps.jsonl: phase_seconds")]
    return Finding(
        rule="launch_bound",
        title=told,
        severity="warning",
        confidence="measured" if waits.traced else "possible",
        evidence=evidence,
        cost=case.cost(lost),
        remedies=_remedies(case, waits, lost),
    )


def _remedies(case: Case, waits: LaunchWaits, lost: float | None) -> list[Remedy]:
    found = []
    times = fitting_times(case, MOST_TIMES) or 1
    if times > 1:
        found.append(_larger(case, times, lost))
    if not case.settings("model").get("compiled"):
        gain = None if lost is None else case.gain(_FUSED * lost, "half of the waits, by fused operators: an estimate")
        costs = "minutes of compilation at the start, and again for every new shape"
        found.append(Remedy("compile the model", {"train.torch_compile": True}, costs, gain))
    return found


def _larger(case: Case, times: int, lost: float | None) -> Remedy:
    rows = int(case.argument("per_device_train_batch_size") or 1)
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    overrides: dict[str, Any] = {"train.per_device_train_batch_size": rows * times}
    if accumulated > 1:
        overrides["train.gradient_accumulation_steps"] = max(1, accumulated // times)
    costs = "activations of more rows"
    if accumulated < times:
        costs += f"; a step holds {times / accumulated:g} times the examples, and an epoch has fewer steps"
    basis = f"as many launches for {times} times the rows"
    gain = None if lost is None else case.gain(lost * (1 - 1 / times), basis)
    return Remedy(f"take {times} times the rows into a micro-batch", overrides, costs, gain)
