"""What bounds the steps of a run that has nothing to fix."""

from typing import NamedTuple

from hf_efficient.diagnosis.case import Case
from hf_efficient.records.findings import Evidence, Limit
from hf_efficient.records.trace import DeviceBreakdown
from hf_efficient.text import share
from hf_efficient.trace.families import operator_family

_MUCH_WAIT = 0.15
_MOST = 0.5
_PRODUCTS = ("matmul", "attention")
_MOVING = ("elementwise", "reduction", "normalisation", "embedding", "optimizer", "copy", "memset")
"""Families that do a few FLOPs per byte: the memory's bandwidth is their roof (``estimate/roofline.py``)."""
_TRACE = "profile/trace.rank0"


class _Parts(NamedTuple):
    """Shares of the time, by what it is bound by; ``outside`` is, on a CPU, that of Python and the Trainer."""

    products: float
    moving: float
    outside: float
    source: str


def limit_of(case: Case) -> Limit:
    """The limit, with its distance from the roofline. The first that holds: the host, where a device waits for it in
    15% of its time or more; arithmetic, from half of the dense peak on; bandwidth, where more than half of the time is
    in operators that move memory; arithmetic, in products below their peak; the host, outside of operators. The last
    three take a trace or an operator table."""
    if case.is_short:
        return Limit("unknown", f"{case.account.steps.count} steps are too few to show one")
    used, device = case.account.work.hfu, case.traced_device
    evidence: list[Evidence] = []
    if used is not None:
        evidence.append(Evidence("hardware FLOP/s over the peak", used, "share", "run.json: work.hfu"))
    waiting = _waiting(case, device, evidence)
    if waiting is not None:
        return waiting
    if used is not None and used >= _MOST:
        text = f"it is bound by arithmetic: {share(used)} of the dense peak in {case.account.work.dtype}"
        return Limit("math", text, evidence)
    parts = _of_device(device) if device is not None else _of_operators(case)
    if parts is not None:
        return _of_parts(parts, used, evidence)
    if used is None:
        why = case.account.work.reason or "the FLOPs of its steps or the device's peak are not known"
        return Limit("unknown", f"no limit is known: {why}", evidence)
    text = (
        f"the matrix products would take {share(used)} of the time at the dense peak; what binds the rest, memory "
        "traffic or small operators, only a trace shows (profile.trace)"
    )
    return Limit("unknown", text, evidence)


def _waiting(case: Case, device: DeviceBreakdown | None, evidence: list[Evidence]) -> Limit | None:
    events, training = case.account.time.device_seconds, case.account.time.training_seconds
    if events and training > 0:
        between = events.get("exposed_wait", 0.0) / training
        evidence.append(Evidence("device waits between steps", between, "share", "steps.jsonl: device_seconds"))
        if between >= _MUCH_WAIT:
            text = f"the device waits for the host between steps in {share(between)} of the time"
            return Limit("host", text, evidence)
    if device is None or device.busy.window_seconds <= 0:
        return None
    idle, window = device.busy.idle, device.busy.window_seconds
    launch, host = idle.launch_bound_seconds / window, idle.host_bound_seconds / window
    evidence.append(Evidence("device waits for the next launch", launch, "share", _TRACE))
    evidence.append(Evidence("device waits for the host otherwise", host, "share", _TRACE))
    if max(launch, host) < _MUCH_WAIT:
        return None
    if launch >= host:
        return Limit("launch", f"it is bound by launches: the device waits for them in {share(launch)} of it", evidence)
    return Limit("host", f"the device waits for the host in {share(host)} of the time", evidence)


def _of_device(device: DeviceBreakdown) -> _Parts | None:
    if device.busy.window_seconds <= 0:
        return None
    shares: dict[str, float] = {one.family: one.seconds / device.busy.window_seconds for one in device.families}
    products, moving = (sum(shares.get(name, 0.0) for name in names) for names in (_PRODUCTS, _MOVING))
    return _Parts(products, moving, 0.0, _TRACE)


def _of_operators(case: Case) -> _Parts | None:
    table = case.account.profile.operators if case.account.profile is not None else None
    if table is None or case.on_cuda or table.wall_seconds <= 0:
        return None
    wall, seconds = table.wall_seconds, {_PRODUCTS: 0.0, _MOVING: 0.0}
    for one in table.operators:
        for families in seconds:
            if operator_family(one.name) in families:
                seconds[families] += one.self_cpu_seconds
    outside = max(0.0, 1 - table.self_cpu_seconds / wall)
    return _Parts(seconds[_PRODUCTS] / wall, seconds[_MOVING] / wall, outside, "profile/operators.rank0.json")


def _of_parts(parts: _Parts, used: float | None, evidence: list[Evidence]) -> Limit:
    evidence.append(Evidence("matrix products and attention, of the time", parts.products, "share", parts.source))
    evidence.append(Evidence("operators that move memory, of the time", parts.moving, "share", parts.source))
    if parts.outside:
        evidence.append(Evidence("outside of any operator", parts.outside, "share", parts.source))
    if parts.moving >= _MOST:
        text = f"it is bound by memory bandwidth: operators that move memory take {share(parts.moving)} of the time"
        return Limit("bandwidth", text, evidence)
    if parts.products >= _MOST:
        text = f"it is bound by arithmetic: matrix products take {share(parts.products)} of the time"
        if used is not None and parts.products > 0:
            reached = min(1.0, used / parts.products)
            evidence.append(Evidence("the products' own rate over the peak", reached, "share", "run.json: work.hfu"))
            text += f", at {share(reached)} of the peak: larger ones come closer to it"
        return Limit("math", text, evidence)
    if parts.outside >= _MOST:
        text = f"it is bound by the host: {share(parts.outside)} of the time is spent outside of any operator"
        return Limit("host", text, evidence)
    text = (
        f"nothing binds it alone: products take {share(parts.products)} of the time, moving memory "
        f"{share(parts.moving)}, the host outside of operators {share(parts.outside)}"
    )
    return Limit("unknown", text, evidence)
