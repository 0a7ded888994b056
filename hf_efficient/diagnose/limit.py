"""What bounds the steps of a run that has nothing to mend."""

from __future__ import annotations

from hf_efficient.diagnose.case import Case
from hf_efficient.records.findings import Evidence, Limit
from hf_efficient.units import share

__all__ = ["limit_of"]

_NEAR_THE_PEAK = 0.5
_MUCH_WAIT = 0.15


def limit_of(case: Case) -> Limit:
    """The limit, with its distance from the roofline.

    Half of the dense peak or more, computed: the matrix products bind. Below, a CUDA device that waits for the host in
    an eighth of the time or more is bound by launches; for one that does not, and for a CPU, the records alone do not
    tell memory traffic from the operators' own overhead: a trace does.
    """
    if case.is_short:
        return Limit("unknown", f"none is told of {case.account.steps.count} steps: they are too few")
    work, evidence = case.account.work, []
    if work.hfu is not None:
        evidence.append(Evidence("hardware FLOP/s over the peak", work.hfu, "share", "run.json: work.hfu"))
    waits = _device_waits(case)
    if waits is not None:
        evidence.append(Evidence("device waits for the host", waits, "share", "steps.jsonl: device_seconds"))
    if waits is not None and waits >= _MUCH_WAIT:
        text = f"the device waits for the host in {share(waits)} of the time: it is bound by launches"
        return Limit("launch", text, evidence)
    if work.hfu is None:
        why = work.reason or "the FLOPs of its steps or the device's peak are not known"
        return Limit("unknown", f"no limit is known: {why}", evidence)
    if work.hfu >= _NEAR_THE_PEAK:
        text = f"it is bound by arithmetic: {share(work.hfu)} of the dense peak in {work.dtype}"
        return Limit("math", text, evidence)
    text = (
        f"the matrix products would take {share(work.hfu)} of the time at the dense peak; what binds the rest, memory "
        "traffic or small operators, only a trace tells (efficiency.profile.trace)"
    )
    return Limit("unknown", text, evidence)


def _device_waits(case: Case) -> float | None:
    device = case.account.time.device_seconds
    if not device or case.account.time.training_seconds <= 0:
        return None
    return device.get("exposed_wait", 0.0) / case.account.time.training_seconds
