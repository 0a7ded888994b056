"""How much of the time a CUDA device waits for the host to launch its next kernel.

Kernels so short that the device waits for the host to launch the next one.

Lines of the user's code that read tensors in every step, and so make the host wait for the device.

Batches that reach the GPU slowly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import Case, traced_device
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.diagnosis.rules.batching import MOST_TIMES, accumulation, fitting_times, small_micro_batch
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.text import share, short_seconds, size

_AHEAD = 0.95
_LOW = 0.35
_TIMED = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class LaunchWaits:
    """Of a device.

    Attributes:
        share: of its time that it waits within a step's work; None: it waits, and how long is not known.
        is_waiting: whether the launches are what it waits for.
        traced: whether a trace tells it, or the step records alone.
        evidence: the figures.
    """

    share: float | None
    is_waiting: bool
    traced: bool
    evidence: list[Evidence]


def launch_waits(case: Case) -> LaunchWaits | None:
    """From the trace where there is one; else from the device's own events and FLOPs; None where neither is there.

    A trace tells each gap (``trace/idle.py``): gaps below 30 microseconds are the launches' own. The records tell
    whether the host ever runs ahead: where it spends as long on submitting a step as the device
    takes for it, and the arithmetic is far below the peak, the device follows the host.
    """
    return _of_trace(case) or _of_records(case)


def _of_trace(case: Case) -> LaunchWaits | None:
    device = traced_device(case)
    if device is None or device.launches is None or device.busy.window_seconds <= 0:
        return None
    idle, launches = device.busy.idle, device.launches
    share = idle.launch_bound_seconds / device.busy.window_seconds
    source = "profile/trace.rank0"
    evidence = [
        Evidence("device waits for the next launch", share, "share", source),
        Evidence("device idle altogether", device.busy.idle_share, "share", source),
        Evidence("kernels a second", launches.kernels_per_second, "count", source),
        Evidence("median kernel", launches.length.p50_seconds, "seconds", source),
        Evidence("kernels shorter than their launch", launches.short_share, "share", source),
    ]
    if launches.call is not None:
        evidence.append(Evidence("median call that launches one", launches.call.p50_seconds, "seconds", source))
    return LaunchWaits(share, idle.launch_bound_seconds >= idle.host_bound_seconds, True, evidence)


def _of_records(case: Case) -> LaunchWaits | None:
    first, used = case.first, case.account.work.hfu
    if first is None or used is None or not all(name in first.device_seconds for name in _TIMED):
        return None
    steady = first.steady
    device = float(np.nansum([first.device_seconds[name][steady] for name in _TIMED]))
    host = float(np.sum([first.phase(name)[steady] for name in _TIMED]))
    if device <= 0:
        return None
    evidence = [
        Evidence("host's time to submit a step, over the device's", host / device, "share", "steps.jsonl"),
        Evidence("hardware FLOP/s over the peak", used, "share", "run.json: work.hfu"),
    ]
    return LaunchWaits(None, host >= _AHEAD * device and used < _LOW, False, evidence)


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


_SHOWN = 5
_FILTER = "logging_nan_inf_filter"
Site = Mapping[str, Any]


def hidden_synchronisation(case: Case) -> Verdict:
    """The census found reads by the user's own lines, one or more per micro-batch; a library's are told beside."""
    if case.first is None:
        return abstains("hidden_synchronisation", NO_STEPS)
    census = case.facts.get("synchronisations", {})
    if "sites" not in census:
        why = "no census of the lines that read tensors was taken"
        return abstains("hidden_synchronisation", why, "efficiency.profile.synchronisations")
    sites: Sequence[Site] = census["sites"]
    own = [site for site in sites if not site["inside_library"]]
    libraries = sum(float(site["count_per_step"]) for site in sites if site["inside_library"])
    reads = sum(float(site["count_per_step"]) for site in own)
    micro_batches = float(np.nanmedian(case.first.micro_batches))
    on_device = bool(census.get("on_device"))
    if reads >= micro_batches:
        return _own_lines(case, own, reads, libraries, on_device)
    if on_device and libraries >= micro_batches and case.argument(_FILTER):
        return _librarys(sites, libraries)
    return None


def _own_lines(case: Case, own: Sequence[Site], reads: float, libraries: float, on_device: bool) -> Finding:
    lines = len({(site["file"], site["line"]) for site in own})
    title = (
        f"your code reads tensors {'once' if reads == 1 else f'{reads:g} times'} per step, at {lines} "
        f"line{'s' if lines > 1 else ''}, first {_place(own[0])}"
    )
    seconds = sum(float(site.get("seconds_per_step") or 0) for site in own) * case.account.steps.count
    if not on_device:
        title += "; on a CPU that costs little, on a GPU each read waits until the device is done"
    what = (
        "keep tensors on the device and read them at the log interval: add up loss.detach(), and call .item() when it "
        "is logged; let torch.where or masks decide, not if"
    )
    libraries_evidence = Evidence("reads by libraries, per step", libraries, "count", "spans.jsonl: synchronisations")
    return Finding(
        rule="hidden_synchronisation",
        title=title,
        severity="warning",
        confidence="measured" if on_device else "likely",
        evidence=[*_evidence(own), libraries_evidence],
        cost=case.cost(min(seconds, case.loop_seconds)) if on_device else case.cost(),
        remedies=[Remedy(what)],
    )


def _librarys(sites: Sequence[Site], reads: float) -> Finding:
    inside = [site for site in sites if site["inside_library"]]
    costs = "a loss that is no number shows in the log, and spoils its mean"
    what = "leave out the Trainer's look at every loss"
    return Finding(
        rule="hidden_synchronisation",
        title=f"libraries read tensors {reads:g} times per step, first {_place(inside[0])}",
        severity="info",
        confidence="measured",
        evidence=_evidence(inside),
        remedies=[Remedy(what, {f"train.{_FILTER}": False}, costs)],
    )


def _evidence(sites: Sequence[Site]) -> list[Evidence]:
    found = []
    for site in sites[:_SHOWN]:
        what = f"reads per step at {_place(site)} in {site['function']}, {site['operator']}"
        found.append(Evidence(what, float(site["count_per_step"]), "count", "spans.jsonl: synchronisations.sites"))
    return found


def _place(site: Site) -> str:
    """``folder/file.py:12``."""
    return f"{'/'.join(PurePath(str(site['file'])).parts[-2:])}:{site['line']}"


_HOST_TO_DEVICE_COPY_TOO_MUCH = 0.05
_PINNED_BYTES_PER_SECOND = 12e9
"""What a 16-lane link of the third generation carries from page-locked memory; newer ones carry more."""
_CALL_SECONDS = 1e-5
_MANY = 16
_SMALL_BYTES = 64 << 10


@dataclass(frozen=True)
class _Copies:
    """Of a step: host seconds, bytes and tensors; whether their memory is page-locked."""

    seconds: float
    bytes: float
    tensors: float
    pinned: bool

    @property
    def least_seconds(self) -> float:
        """From page-locked memory, one call per tensor."""
        return self.bytes / _PINNED_BYTES_PER_SECOND + self.tensors * _CALL_SECONDS


def host_to_device_copy(case: Case) -> Verdict:
    """On a GPU, a twentieth of the loop or more goes into handing it the batches: pageable, in pieces, or blocking."""
    if case.first is None:
        return abstains("host_to_device_copy", NO_STEPS)
    if not case.on_cuda:
        return None
    copies = _copies(case)
    if copies is None:
        why = "what the batches hold is not recorded"
        return abstains("host_to_device_copy", why, "EfficientTrainerMixin; efficiency.profile.trace shows every copy")
    steps = case.account.steps.count
    if case.share(copies.seconds * steps) < _HOST_TO_DEVICE_COPY_TOO_MUCH:
        return None
    saved = max(0.0, copies.seconds - copies.least_seconds) * steps
    in_pieces = copies.tensors >= _MANY and copies.bytes < _SMALL_BYTES * copies.tensors
    kind = "in many small pieces" if in_pieces else "from pinned memory" if copies.pinned else "from pageable memory"
    return Finding(
        rule="host_to_device_copy",
        title=(
            f"{share(case.share(copies.seconds * steps))} of the training loop hands batches to the GPU {kind}: "
            f"{size(round(copies.bytes))} in {short_seconds(copies.seconds)} per step"
        ),
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence(
                "host time of a step's copies",
                copies.seconds,
                "seconds",
                "steps.jsonl: host_to_device, and data_wait without the loader's",
            ),
            Evidence("bytes of a step", copies.bytes, "bytes", "steps.jsonl: loader.bytes"),
            Evidence("tensors of a step", copies.tensors, "count", "spans.jsonl: loader.first_batch"),
            Evidence("page-locked", "yes" if copies.pinned else "no", "", "spans.jsonl: loader.first_batch"),
        ],
        cost=case.cost(saved),
        remedies=_host_to_device_copy_remedies(case, copies, in_pieces, saved),
    )


def _copies(case: Case) -> _Copies | None:
    first, batch = case.first, case.facts.get("loader", {}).get("first_batch")
    if first is None or not batch or "bytes" not in first.loader:
        return None
    loader = {name: np.nan_to_num(first.loader[name]) for name in ("wait_seconds", "start_seconds", "end_seconds")}
    around = np.maximum(0.0, first.phase("data_wait") - sum(loader.values()))
    seconds = (first.phase("host_to_device") + around)[first.steady]
    return _Copies(
        seconds=float(seconds.mean()),
        bytes=float(np.nanmean(first.loader["bytes"][first.steady])),
        tensors=len(batch) * float(np.nanmean(first.loader["batches"][first.steady])),
        pinned=all(bool(tensor.get("pinned")) for tensor in batch.values()),
    )


def _host_to_device_copy_remedies(case: Case, copies: _Copies, in_pieces: bool, saved: float) -> list[Remedy]:
    gain = case.gain(saved, "copies from pinned memory at 12 GB/s, and 10 µs for each tensor")
    if in_pieces:
        return [Remedy("put what a batch holds into fewer, larger tensors in the collator", gain=None)]
    overrides: dict[str, Any] = {"train.accelerator_config": {"non_blocking": True}}
    if copies.pinned:
        return [Remedy("copy without waiting", overrides, gain=gain)]
    overrides["train.dataloader_pin_memory"] = True
    return [
        Remedy("load into pinned memory, and copy without waiting", overrides, "memory that cannot be swapped", gain)
    ]
