"""What can be wrong with a trace alone, of whatever run. Costs and gains are of the device's traced time."""

from hf_efficient.diagnosis.case import TracedDevice, Verdict, finding, rule
from hf_efficient.diagnosis.rules.compute import float32_products_of
from hf_efficient.facts.tables import accelerator_of_device
from hf_efficient.records.findings import Remedy
from hf_efficient.records.trace import SyncSite
from hf_efficient.text import counted, share, short_seconds

_SOURCE = "the trace"
_LATER = "trace later steps: in the first ones the allocator asks the driver for memory"
_WORKERS = "load data beside the training: more workers (train.dataloader_num_workers)"
_ALLOCATING = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree")
_LOADING = ("dataloader", "enumerate(", "__next__", "collate", "_mp_fetch", "tokeniz")
_FUSABLE = ("elementwise", "reduction", "normalisation")
_FUSED = 0.5
"""Of the time of such kernels between products, what fusing them saves: reads and writes between them. An estimate."""
_IN_16_BITS = 0.5
"""Of their time, an estimate: 16 bits halve the bytes, and at least halve the arithmetic wherever tensor cores are."""
_BEFORE_BFLOAT16 = ("volta_", "turing_", "maxwell_", "pascal_")
"""What kernels of such devices are called."""


@rule()
def trace_host_bound(traced: TracedDevice) -> Verdict:
    """In a tenth of its time or more the next work was not submitted when the device ran out of it."""
    device, idle = traced.device, traced.device.busy.idle
    if traced.share(idle.host_bound_seconds) < 0.1:
        return None
    gaps = [gap for gap in device.gaps if gap.cause == "host_bound"]
    evidence = [
        ("waits for the host", idle.host_bound_seconds, "seconds", _SOURCE),
        ("such waits", idle.host_bound_gaps, "count", _SOURCE),
    ]
    for gap in gaps[:3]:
        doing = ", ".join(name for name, _ in gap.host[:2]) or "nothing that was recorded"
        evidence.append((f"a wait, during {doing}", gap.seconds, "seconds", _SOURCE))
    in_syncs = sum(one.idle_after_seconds for one in traced.trace.syncs)
    names = [name for gap in gaps for name, _ in gap.host]
    what = "look at what the host does in the longest gaps: Python, logging, callbacks"
    if names and names[0].startswith(_ALLOCATING):
        what = _LATER
    elif any(part in name.lower() for name in names for part in _LOADING):
        what = _WORKERS
    elif in_syncs >= idle.host_bound_seconds / 2:
        what = "read no values back from the device within a step (see the waits below, by place)"
    gain = None if what == _LATER else traced.gain(idle.host_bound_seconds, "at most: none of these waits")
    overrides = {"train.dataloader_num_workers": 4} if what == _WORKERS else {}
    return finding(
        f"{traced.name} waits for the host in {share(traced.share(idle.host_bound_seconds))} of the time, the "
        f"longest for {short_seconds(gaps[0].seconds) if gaps else 'unknown'}",
        evidence,
        [Remedy(what, overrides, gain=gain)],
        traced.cost(idle.host_bound_seconds),
        severity="info" if what == _LATER else "warning",
    )


@rule()
def trace_launch_bound(traced: TracedDevice) -> Verdict:
    """The gaps between kernels that are too short for anything but launching take 15% of the time or more."""
    seconds, launches = traced.device.busy.idle.launch_bound_seconds, traced.device.launches
    if launches is None or traced.share(seconds) < 0.15:
        return None
    doubled = traced.gain(seconds / 2, "as many gaps for twice the rows")
    fused = traced.gain(seconds / 2, "half of the gaps, by fused operators: an estimate")
    return finding(
        f"{traced.name} waits for launches in {share(traced.share(seconds))} of the time: half of its kernels "
        f"are shorter than {short_seconds(launches.length.p50_seconds)}",
        [
            ("gaps between kernels", seconds, "seconds", _SOURCE),
            ("kernels a second", launches.kernels_per_second, "count", _SOURCE),
            ("median kernel", launches.length.p50_seconds, "seconds", _SOURCE),
            ("kernels shorter than their launch", launches.short_share, "share", _SOURCE),
        ],
        [
            Remedy("take twice the rows into a micro-batch", costs="activations of more rows", gain=doubled),
            Remedy("compile the model", {"train.torch_compile": True}, "compilation at the start", fused),
        ],
        traced.cost(seconds),
    )


@rule()
def trace_exposed_communication(traced: TracedDevice) -> Verdict:
    """Exposed communication takes a tenth of the time or more: transfers, or the wait for a slower rank."""
    found = traced.device.communication
    if found is None or found.exposed_share < 0.1:
        return None
    basis = "gradients are averaged half as often; each time as long as now"
    fewer = Remedy(
        "accumulate twice as many micro-batches between two steps",
        costs="a step holds twice the examples",
        gain=traced.gain(found.exposed_seconds / 2, basis),
    )
    others = Remedy("hold the other ranks' traces against it: the others wait for the one that communicates least")
    return finding(
        f"{traced.name} communicates and computes nothing in {share(found.exposed_share)} of the time",
        [
            ("communication", found.seconds, "seconds", _SOURCE),
            ("of it, that nothing covers", found.exposed_seconds, "seconds", _SOURCE),
            ("of it, covered by computation", found.overlap_share, "share", _SOURCE),
        ],
        [fewer, others],
        traced.cost(found.exposed_seconds),
    )


@rule()
def trace_pageable_copies(traced: TracedDevice) -> Verdict:
    """Pageable copies to the device hold up host or device for a fiftieth of the time or more."""
    found = [one for one in traced.device.copies if one.direction == "HtoD" and one.host_memory == "pageable"]
    lost = sum(max(one.seconds, one.call_seconds or 0.0) for one in found)
    if not found or traced.share(lost) < 0.02:
        return None
    count, small = sum(one.count for one in found), sum(one.small_count for one in found)
    what = "pin the batches' memory, so that they are copied while the device computes"
    gain = traced.gain(lost, "copies from pinned memory run beside the computation")
    pinned = {"train.dataloader_pin_memory": True}
    remedies = [Remedy(what, pinned, "host memory that cannot be swapped", gain)]
    if small > count / 2:
        remedies.append(Remedy("put many small tensors into one before they are copied"))
    return finding(
        f"{count} copies from pageable memory to {traced.name} take {short_seconds(lost)}, "
        f"{share(traced.share(lost))} of the time",
        [
            ("copies' time on the device", sum(one.seconds for one in found), "seconds", _SOURCE),
            ("host's time in their calls", sum(one.call_seconds or 0.0 for one in found), "seconds", _SOURCE),
            ("copied", sum(one.bytes or 0 for one in found) or None, "bytes", _SOURCE),
            ("of at most 64 KiB", small, "count", _SOURCE),
        ],
        remedies,
        traced.cost(lost),
    )


@rule()
def trace_synchronisations(traced: TracedDevice) -> Verdict:
    """The device was idle after waits of the host for it in three hundredths of its time, those outside steps apart."""
    sites = [one for one in traced.trace.syncs if one.outside_steps < one.count and one.idle_after_seconds > 0]
    sites.sort(key=lambda one: -one.idle_after_seconds)
    idle = sum(one.idle_after_seconds for one in sites)
    if not sites or traced.share(idle) < 0.03:
        return None
    evidence = [
        (f"idle after {one.count} waits in {_place(one)}", one.idle_after_seconds, "seconds", _SOURCE)
        for one in sites[:5]
    ]
    gain = traced.gain(idle, "the device never runs out of work there")
    what = "keep values on the device, and read them back when something is logged, not in every step"
    return finding(
        f"{traced.name} runs out of work in {share(traced.share(idle))} of the time because the host waits for "
        f"it, most of all in {_place(sites[0])}",
        evidence,
        [Remedy(what, gain=gain)],
        traced.cost(idle),
        explains=["trace_host_bound"] if idle >= traced.device.busy.idle.host_bound_seconds / 2 else [],
    )


def _place(site: SyncSite) -> str:
    return site.site or (f"{site.operator} ({site.call})" if site.operator else site.call)


@rule()
def trace_memory_bound(traced: TracedDevice) -> Verdict:
    """Elementwise, reducing and normalising kernels take half of the time of all kernels or more."""
    found = [one for one in traced.device.families if one.family in _FUSABLE]
    taken, seconds = sum(one.share for one in found), sum(one.seconds for one in found)
    if taken < 0.5:
        return None
    gain = traced.gain(_FUSED * seconds, "fused kernels read and write half as much: an estimate")
    longest = [kernel for kernel in traced.device.kernels if kernel.family in _FUSABLE][:3]
    fused = "or take fused kernels for norms, MLP and loss"
    return finding(
        f"{share(taken)} of {traced.name}'s kernel time moves memory, and multiplies nothing",
        [
            *((f"{one.family} kernels", one.seconds, "seconds", _SOURCE) for one in found),
            *((f"{one.name}, {counted(one.count, 'time')}", one.seconds, "seconds", _SOURCE) for one in longest),
        ],
        [
            Remedy("compile the model: it fuses such kernels", {"train.torch_compile": True}, "compilation", gain),
            Remedy(fused, {"train.use_liger_kernel": True}, "pip install liger-kernel", gain),
        ],
        traced.cost(seconds),
        confidence="likely",
    )


@rule()
def trace_float32_products(traced: TracedDevice) -> Verdict:
    """Float32 matrix products take a tenth of the device's time or more, among the longest kernels."""
    found = float32_products_of(traced.device)
    seconds = sum(one.seconds for one in found)
    if not found or traced.share(seconds) < 0.1:
        return None
    gain = traced.gain(_IN_16_BITS * seconds, "half of their time at the least, by half of the bytes")
    known = accelerator_of_device(traced.device.name or "")
    is_old = any(one.name.startswith(_BEFORE_BFLOAT16) for one in traced.device.kernels)
    if (known is not None and known.lacks_bfloat16) or is_old:  # it knows neither bfloat16 nor TF32
        costs = "float16 needs its losses scaled, and overflows at 65,504"
        remedies = [Remedy("train in mixed precision", {"train.fp16": True}, costs, gain)]
    else:
        remedies = [
            Remedy("train in mixed precision", {"train.bf16": True}, "bfloat16 keeps 8 of float32's 24 bits", gain),
            Remedy("or let float32 products run in TF32", {"train.tf32": True}, "11 of 24 bits in products alone"),
        ]
    return finding(
        f"{share(traced.share(seconds))} of {traced.name}'s time are matrix products in float32",
        [(f"{one.name}, {counted(one.count, 'time')}", one.seconds, "seconds", _SOURCE) for one in found[:3]],
        remedies,
        traced.cost(seconds),
        confidence="likely",
    )
