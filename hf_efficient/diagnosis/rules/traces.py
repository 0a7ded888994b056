"""A device that waits while the host does something else than launching.

Kernels shorter than their launch.

Communication that no computation covers.

Copies from and to memory that the system may move.

Waits of the host for the device that leave the device without work.

Kernels that move memory rather than multiply.

Matrix products in float32.
"""

from __future__ import annotations

from hf_efficient.diagnosis.rule import RULE_SOURCE as SOURCE
from hf_efficient.diagnosis.rule import cost_of, gain_of, on_device
from hf_efficient.diagnosis.rules.precision import float32_products_of
from hf_efficient.facts.accelerators import accelerator_of_device
from hf_efficient.records.findings import Evidence, Finding, Gain, Remedy
from hf_efficient.records.trace import CopyKind, DeviceBreakdown, SyncSite, TraceBreakdown
from hf_efficient.text import share, short_seconds, size

_TOO_MUCH = 0.1
_LATER = "trace later steps: in the first ones the allocator asks the driver for memory"
_WORKERS = "load data beside the training: more workers (train.dataloader_num_workers)"
_ALLOCATING = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")
_LOADING = ("dataloader", "enumerate(", "__next__", "collate", "_mp_fetch", "tokeniz")


def trace_host_bound(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """In a tenth of its time or more the next work was not submitted when the device ran out of it."""
    idle, window = device.busy.idle, device.busy.window_seconds
    if window <= 0 or idle.host_bound_seconds < _TOO_MUCH * window:
        return None
    gaps = [gap for gap in device.gaps if gap.cause == "host_bound"]
    evidence = [
        Evidence("waits for the host", idle.host_bound_seconds, "seconds", SOURCE),
        Evidence("such waits", idle.host_bound_gaps, "count", SOURCE),
    ]
    for gap in gaps[:3]:
        doing = ", ".join(name for name, _ in gap.host[:2]) or "nothing that was recorded"
        evidence.append(Evidence(f"a wait, during {doing}", gap.seconds, "seconds", SOURCE))
    waited_in_syncs = sum(one.idle_after_seconds for one in trace.syncs)
    what = _what([name for gap in gaps for name, _ in gap.host], waited_in_syncs >= idle.host_bound_seconds / 2)
    gain = None if what == _LATER else gain_of(device, idle.host_bound_seconds, "at most: none of these waits")
    return Finding(
        rule="trace_host_bound",
        title=f"{on_device(device)} waits for the host in {share(idle.host_bound_seconds / window)} of the time, the "
        f"longest for {short_seconds(gaps[0].seconds) if gaps else 'unknown'}",
        severity="info" if what == _LATER else "warning",
        confidence="measured",
        evidence=evidence,
        cost=cost_of(idle.host_bound_seconds),
        remedies=[Remedy(what, _overrides(what), gain=gain)],
    )


def _what(doing: list[str], synchronises: bool) -> str:
    if doing and doing[0].startswith(_ALLOCATING):
        return _LATER
    if any(part in name.lower() for name in doing for part in _LOADING):
        return _WORKERS
    if synchronises:
        return "read no values back from the device within a step (see the waits below, by place)"
    return "look at what the host does in the longest gaps: Python, logging, callbacks"


def _overrides(what: str) -> dict[str, int]:
    return {"train.dataloader_num_workers": 4} if what == _WORKERS else {}


_TRACE_LAUNCH_BOUND_TOO_MUCH = 0.15


def trace_launch_bound(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """The gaps between kernels that are too short for anything but launching take 15% of the time or more."""
    seconds, window, launches = device.busy.idle.launch_bound_seconds, device.busy.window_seconds, device.launches
    if window <= 0 or launches is None or seconds < _TRACE_LAUNCH_BOUND_TOO_MUCH * window:
        return None
    evidence = [
        Evidence("gaps between kernels", seconds, "seconds", SOURCE),
        Evidence("kernels a second", launches.kernels_per_second, "count", SOURCE),
        Evidence("median kernel", launches.length.p50_seconds, "seconds", SOURCE),
        Evidence("kernels shorter than their launch", launches.short_share, "share", SOURCE),
    ]
    doubled = gain_of(device, seconds / 2, "as many gaps for twice the rows")
    fused = gain_of(device, seconds / 2, "half of the gaps, by fused operators: an estimate")
    return Finding(
        rule="trace_launch_bound",
        title=f"{on_device(device)} waits for launches in {share(seconds / window)} of the time: half of its kernels "
        f"are shorter than {short_seconds(launches.length.p50_seconds)}",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=cost_of(seconds),
        remedies=[
            Remedy("take twice the rows into a micro-batch", costs="activations of more rows", gain=doubled),
            Remedy("compile the model", {"train.torch_compile": True}, "compilation at the start", fused),
        ],
    )


def trace_exposed_communication(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """A tenth of the time or more: transfers, or the wait for a slower rank; one rank's trace does not tell which."""
    found = device.communication
    if found is None or found.exposed_share < _TOO_MUCH:
        return None
    basis = "gradients are averaged half as often; each time as long as now"
    return Finding(
        rule="trace_exposed_communication",
        title=f"{on_device(device)} communicates and computes nothing in {share(found.exposed_share)} of the time",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("communication", found.seconds, "seconds", SOURCE),
            Evidence("of it, that nothing covers", found.exposed_seconds, "seconds", SOURCE),
            Evidence("of it, covered by computation", found.overlap_share, "share", SOURCE),
        ],
        cost=cost_of(found.exposed_seconds),
        remedies=[
            Remedy(
                "accumulate twice as many micro-batches between two steps",
                costs="a step holds twice the examples",
                gain=gain_of(device, found.exposed_seconds / 2, basis),
            ),
            Remedy("hold the other ranks' traces against it: who communicates least is who the others wait for"),
        ],
    )


_TRACE_PAGEABLE_COPIES_TOO_MUCH = 0.02


def trace_pageable_copies(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """Pageable copies to the device hold up host or device for a fiftieth of the time or more."""
    found = [one for one in device.copies if one.direction == "HtoD" and one.host_memory == "pageable"]
    lost = sum(max(one.seconds, one.call_seconds or 0.0) for one in found)
    if device.busy.window_seconds <= 0 or lost < _TRACE_PAGEABLE_COPIES_TOO_MUCH * device.busy.window_seconds:
        return None
    count, small = sum(one.count for one in found), sum(one.small_count for one in found)
    remedies = [
        Remedy(
            "pin the batches' memory, so that they are copied while the device computes",
            {"train.dataloader_pin_memory": True},
            "host memory that cannot be swapped",
            gain_of(device, lost, "copies from pinned memory run beside the computation"),
        )
    ]
    if small > count / 2:
        remedies.append(Remedy("put many small tensors into one before they are copied"))
    return Finding(
        rule="trace_pageable_copies",
        title=f"{count} copies from pageable memory to {on_device(device)} take {short_seconds(lost)}, "
        f"{share(lost / device.busy.window_seconds)} of the time",
        severity="warning",
        confidence="measured",
        evidence=[*_evidence(found), Evidence("of at most 64 KiB", small, "count", SOURCE)],
        cost=cost_of(lost),
        remedies=remedies,
    )


def _evidence(found: list[CopyKind]) -> list[Evidence]:
    evidence = [Evidence("copies' time on the device", sum(one.seconds for one in found), "seconds", SOURCE)]
    calls = sum(one.call_seconds or 0.0 for one in found)
    evidence.append(Evidence("host's time in their calls", calls, "seconds", SOURCE))
    copied = sum(one.bytes or 0 for one in found)
    if copied:
        rate = f"{size(round(copied / sum(one.seconds for one in found)))}/s"
        evidence.append(Evidence("copied", copied, "bytes", SOURCE))
        evidence.append(Evidence("rate", rate, "", SOURCE))
    return evidence


_TRACE_SYNCHRONISATIONS_TOO_MUCH = 0.03
_NAMED = 5


def trace_synchronisations(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """The device was idle after such waits in three hundredths of its time or more; those outside of steps left out."""
    sites = [one for one in trace.syncs if one.outside_steps < one.count and one.idle_after_seconds > 0]
    idle, window = sum(one.idle_after_seconds for one in sites), device.busy.window_seconds
    if window <= 0 or idle < _TRACE_SYNCHRONISATIONS_TOO_MUCH * window:
        return None
    sites = sorted(sites, key=lambda one: -one.idle_after_seconds)
    evidence = [
        Evidence(f"idle after {one.count} waits in {_place(one)}", one.idle_after_seconds, "seconds", SOURCE)
        for one in sites[:_NAMED]
    ]
    if trace.steps:
        within = sum(one.count - one.outside_steps for one in sites)
        evidence.append(Evidence("waits per step", within / len(trace.steps), "count", SOURCE))
    return Finding(
        rule="trace_synchronisations",
        title=f"{on_device(device)} runs out of work in {share(idle / window)} of the time because the host waits for "
        f"it, most of all in {_place(sites[0])}",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=cost_of(idle),
        remedies=[
            Remedy(
                "keep values on the device, and read them back when something is logged, not in every step",
                gain=gain_of(device, idle, "the device never runs out of work there"),
            )
        ],
        explains=["trace_host_bound"] if idle >= device.busy.idle.host_bound_seconds / 2 else [],
    )


def _place(site: SyncSite) -> str:
    return site.site or (f"{site.operator} ({site.call})" if site.operator else site.call)


_TRACE_MEMORY_BOUND_TOO_MUCH = 0.5
_FUSABLE = ("elementwise", "reduction", "normalisation")
_FUSED = 0.5
"""Of the time of such kernels between products, what fusing them saves: reads and writes between them. An estimate."""


def trace_memory_bound(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """Elementwise, reducing and normalising kernels take half of the time of all kernels or more."""
    found = [one for one in device.families if one.family in _FUSABLE]
    taken, seconds = sum(one.share for one in found), sum(one.seconds for one in found)
    if taken < _TRACE_MEMORY_BOUND_TOO_MUCH:
        return None
    basis = "fused kernels read and write half as much: an estimate"
    gain = gain_of(device, _FUSED * seconds, basis)
    evidence = [Evidence(f"{one.family} kernels", one.seconds, "seconds", SOURCE) for one in found]
    evidence += [
        Evidence(f"{one.name}, {one.count} times", one.seconds, "seconds", SOURCE)
        for one in [kernel for kernel in device.kernels if kernel.family in _FUSABLE][:3]
    ]
    return Finding(
        rule="trace_memory_bound",
        title=f"{share(taken)} of {on_device(device)}'s kernel time moves memory, and multiplies nothing",
        severity="warning",
        confidence="likely",
        evidence=evidence,
        cost=cost_of(seconds),
        remedies=[
            Remedy("compile the model: it fuses such kernels", {"train.torch_compile": True}, "compilation", gain),
            Remedy(
                "or take fused kernels for norms, MLP and loss",
                {"train.use_liger_kernel": True},
                "pip install liger-kernel",
                gain,
            ),
        ],
    )


_MOST_NAMED = 3
_BEFORE = ("volta_", "turing_", "maxwell_", "pascal_")
"""What kernels of such devices are called."""
_SAVED = 0.5
"""Of their time, an estimate: 16 bits halve the bytes, and at least halve the arithmetic wherever tensor cores are."""


def trace_float32_products(trace: TraceBreakdown, device: DeviceBreakdown) -> Finding | None:
    """A tenth of the device's time or more, among the kernels that take longest."""
    found = float32_products_of(device)
    seconds, window = sum(one.seconds for one in found), device.busy.window_seconds
    if window <= 0 or seconds < _TOO_MUCH * window:
        return None
    gain = gain_of(device, _SAVED * seconds, "half of their time at the least, by half of the bytes")
    return Finding(
        rule="trace_float32_products",
        title=f"{share(seconds / window)} of {on_device(device)}'s time are matrix products in float32",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence(f"{one.name}, {one.count} times", one.seconds, "seconds", SOURCE) for one in found[:_MOST_NAMED]
        ],
        cost=cost_of(seconds),
        remedies=_remedies(device, gain),
    )


def _remedies(device: DeviceBreakdown, gain: Gain) -> list[Remedy]:
    """Devices from before bfloat16 know neither it nor TF32."""
    known = accelerator_of_device(device.name or "")
    if (known is not None and known.lacks_bfloat16) or any(one.name.startswith(_BEFORE) for one in device.kernels):
        costs = "float16 needs its losses scaled, and overflows at 65,504"
        return [Remedy("train in mixed precision", {"train.fp16": True}, costs, gain)]
    return [
        Remedy("train in mixed precision", {"train.bf16": True}, "bfloat16 keeps 8 of float32's 24 bits", gain),
        Remedy("or let float32 products run in TF32", {"train.tf32": True}, "11 of 24 bits in products alone"),
    ]
