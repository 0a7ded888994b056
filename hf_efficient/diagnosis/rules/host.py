"""A device that waits for the host: for launches, for batches, for lines that read tensors."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from hf_efficient.diagnosis.case import MATTERS, Case, Row, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules import batching
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.text import share, short_seconds, size

_FUSED = 0.5
"""Of the waits, what torch.compile is taken to save: it fuses the operators between products. An estimate."""
_TIMED = ("forward", "backward", "optimizer")
_PINNED_BYTES_PER_SECOND = 12e9
"""What a 16-lane link of the third generation carries from page-locked memory; newer ones carry more."""
_CALL_SECONDS = 1e-5
_FILTER = "logging_nan_inf_filter"

Site = Mapping[str, Any]


class _LaunchWaits(NamedTuple):
    """How much of its time a CUDA device waits for launches; ``share``: None where it waits, for an unknown time.
    ``traced``: a trace shows it, not the step records alone."""

    share: float | None
    is_waiting: bool
    traced: bool
    evidence: list[Row]


@rule()
def launch_bound(case: Case) -> Verdict:
    """The device waits for launches in 15% of its time or more; small micro-batches have a rule of their own."""
    if not case.on_cuda:
        return None
    if any(isinstance(one(case), Finding) for one in (batching.accumulation, batching.small_micro_batch)):
        return None
    waits = _traced_waits(case) or _recorded_waits(case)
    if waits is None:
        return abstains("what the device waits for is not known", "profile.trace")
    if not waits.is_waiting or (waits.share is not None and waits.share < 0.15):
        return None
    title = "the host needs as long to launch a step's kernels as the device has for them"
    if waits.share is not None:
        title = f"the device waits for the next kernel to be launched in {share(waits.share)} of its time"
    computed = case.compute_seconds
    lost = None if waits.share is None else waits.share * computed
    return finding(
        title,
        [*waits.evidence, ("forward and backward", computed, "seconds", "steps.jsonl: phase_seconds")],
        _fewer_launches(case, lost),
        case.cost(lost),
        confidence="measured" if waits.traced else "possible",
    )


def _traced_waits(case: Case) -> _LaunchWaits | None:
    """A trace shows each gap (``trace/breakdown.py``): gaps below 30 microseconds are the launches' own."""
    device = case.traced_device
    if device is None or device.launches is None or device.busy.window_seconds <= 0:
        return None
    idle, launches = device.busy.idle, device.launches
    share = idle.launch_bound_seconds / device.busy.window_seconds
    source = "profile/trace.rank0"
    evidence: list[Row] = [
        ("device waits for the next launch", share, "share", source),
        ("kernels a second", launches.kernels_per_second, "count", source),
        ("median kernel", launches.length.p50_seconds, "seconds", source),
        ("kernels shorter than their launch", launches.short_share, "share", source),
    ]
    return _LaunchWaits(share, idle.launch_bound_seconds >= idle.host_bound_seconds, True, evidence)


def _recorded_waits(case: Case) -> _LaunchWaits | None:
    """Without a trace: the device follows the host where submitting a step takes as long as the device's work on it,
    and the arithmetic is far below the peak."""
    first, used = case.first, case.account.work.hfu
    if used is None or not all(name in first.device_seconds for name in _TIMED):
        return None
    device = float(np.nansum([first.device_seconds[name][first.steady] for name in _TIMED]))
    host = float(np.sum([first.phase(name)[first.steady] for name in _TIMED]))
    if device <= 0:
        return None
    evidence: list[Row] = [
        ("host's time to submit a step, over the device's", host / device, "share", "steps.jsonl"),
        ("hardware FLOP/s over the peak", used, "share", "run.json: work.hfu"),
    ]
    return _LaunchWaits(None, host >= 0.95 * device and used < 0.35, False, evidence)


def _fewer_launches(case: Case, lost: float | None) -> list[Remedy]:
    found = []
    times = batching.fitting_times(case, batching.MOST_TIMES) or 1
    if times > 1:
        basis = f"as many launches for {times} times the rows"
        gain = None if lost is None else case.gain(lost * (1 - 1 / times), basis)
        found.append(batching.larger_micro_batch(case.rows, case.accumulated, times, gain))
    if not case.settings("model").get("compiled"):
        gain = None if lost is None else case.gain(_FUSED * lost, "half of the waits, by fused operators: an estimate")
        costs = "minutes of compilation at the start, and again for every new shape"
        found.append(Remedy("compile the model", {"train.torch_compile": True}, costs, gain))
    return found


@rule()
def hidden_synchronisation(case: Case) -> Verdict:
    """The user's own lines make the host wait for the device in every micro-batch; a library's are named beside."""
    census = case.facts.get("synchronisations", {})
    if "sites" not in census:
        return abstains("no census of the lines that read tensors was taken", "profile.synchronisations")
    own = [site for site in census["sites"] if not site["inside_library"]]
    inside = [site for site in census["sites"] if site["inside_library"]]
    micro_batches = float(np.nanmedian(case.first.micro_batches))
    on_device = bool(census.get("on_device"))
    if _reads(own) >= micro_batches:
        return _own_reads(case, own, _reads(inside), on_device)
    if on_device and _reads(inside) >= micro_batches and case.argument(_FILTER):
        costs = "a non-finite loss shows in the log, and spoils its mean"
        return finding(
            f"libraries read tensors {_reads(inside):g} times per step, first {_place(inside[0])}",
            _read_evidence(inside),
            [Remedy("leave out the Trainer's look at every loss", {f"train.{_FILTER}": False}, costs)],
            severity="info",
        )
    return None


def _reads(sites: Sequence[Site]) -> float:
    return sum(float(site["count_per_step"]) for site in sites)


def _own_reads(case: Case, own: Sequence[Site], libraries: float, on_device: bool) -> Finding:
    lines, reads = len({(site["file"], site["line"]) for site in own}), _reads(own)
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
    by_libraries = ("reads by libraries, per step", libraries, "count", "spans.jsonl: synchronisations")
    return finding(
        title,
        [*_read_evidence(own), by_libraries],
        [Remedy(what)],
        case.cost(min(seconds, case.loop_seconds)) if on_device else case.cost(),
        confidence="measured" if on_device else "likely",
    )


def _read_evidence(sites: Sequence[Site]) -> list[Row]:
    named = [(f"reads per step at {_place(one)} in {one['function']}, {one['operator']}", one) for one in sites[:5]]
    return [(what, float(one["count_per_step"]), "count", "spans.jsonl: synchronisations.sites") for what, one in named]


def _place(site: Site) -> str:
    return f"{'/'.join(PurePath(str(site['file'])).parts[-2:])}:{site['line']}"


class _Copies(NamedTuple):
    """Of a step: host seconds, bytes and tensors; whether their memory is page-locked."""

    seconds: float
    bytes: float
    tensors: float
    pinned: bool

    @property
    def in_pieces(self) -> bool:
        return self.tensors >= 16 and self.bytes < (64 << 10) * self.tensors

    @property
    def kind(self) -> str:
        if self.in_pieces:
            return "in many small pieces"
        return "from pinned memory" if self.pinned else "from pageable memory"


@rule()
def host_to_device_copy(case: Case) -> Verdict:
    """On a GPU, a twentieth of the loop or more goes into handing it the batches: pageable, in pieces, or blocking."""
    if not case.on_cuda:
        return None
    copies = _copies(case)
    if copies is None:
        instruments = "EfficientTrainerMixin; profile.trace shows every copy"
        return abstains("what the batches hold is not recorded", instruments)
    taken = case.share(copies.seconds * case.account.steps.count)
    if taken < MATTERS:
        return None
    least = copies.bytes / _PINNED_BYTES_PER_SECOND + copies.tensors * _CALL_SECONDS  # pinned, one call per tensor
    saved = max(0.0, copies.seconds - least) * case.account.steps.count
    spent = "steps.jsonl: host_to_device, and data_wait without the loader's"
    return finding(
        f"{share(taken)} of the training loop hands batches to the GPU {copies.kind}: "
        f"{size(round(copies.bytes))} in {short_seconds(copies.seconds)} per step",
        [
            ("host time of a step's copies", copies.seconds, "seconds", spent),
            ("bytes of a step", copies.bytes, "bytes", "steps.jsonl: loader.bytes"),
            ("tensors of a step", copies.tensors, "count", "spans.jsonl: loader.first_batch"),
            ("page-locked", "yes" if copies.pinned else "no", "", "spans.jsonl: loader.first_batch"),
        ],
        [_quicker_copies(case, copies, saved)],
        case.cost(saved),
        confidence="likely",
    )


def _copies(case: Case) -> _Copies | None:
    first, batch = case.first, case.facts.get("loader", {}).get("first_batch")
    if not batch or "bytes" not in first.loader:
        return None
    waits = sum(np.nan_to_num(first.loader[name]) for name in ("wait_seconds", "start_seconds", "end_seconds"))
    around = np.maximum(0.0, first.phase("data_wait") - waits)
    seconds = (first.phase("host_to_device") + around)[first.steady]
    return _Copies(
        seconds=float(seconds.mean()),
        bytes=float(np.nanmean(first.loader["bytes"][first.steady])),
        tensors=len(batch) * float(np.nanmean(first.loader["batches"][first.steady])),
        pinned=all(bool(tensor.get("pinned")) for tensor in batch.values()),
    )


def _quicker_copies(case: Case, copies: _Copies, saved: float) -> Remedy:
    gain = case.gain(saved, "copies from pinned memory at 12 GB/s, and 10 µs for each tensor")
    if copies.in_pieces:
        return Remedy("put what a batch holds into fewer, larger tensors in the collator")
    overrides: dict[str, Any] = {"train.accelerator_config": {"non_blocking": True}}
    if copies.pinned:
        return Remedy("copy without waiting", overrides, gain=gain)
    overrides["train.dataloader_pin_memory"] = True
    what = "load into pinned memory, and copy without waiting"
    return Remedy(what, overrides, "memory that cannot be swapped", gain)
