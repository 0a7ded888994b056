"""A device that waits for the host: for launches, for batches, for lines that read tensors."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import MATTERS, Case, Row, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.rules import batching
from hf_efficient.records.findings import Finding, Remedy
from hf_efficient.text import counted, share, short_seconds, size

_FUSED = 0.5
"""Of the waits, what torch.compile is taken to save: it fuses the operators between products. An estimate."""
_TIMED = ("forward", "backward", "optimizer")
_PINNED_BYTES_PER_SECOND = 12e9
"""What a 16-lane link of the third generation carries from page-locked memory; newer ones carry more."""
_CALL_SECONDS = 1e-5
_FILTER = "logging_nan_inf_filter"

Site = Mapping[str, Any]
_LaunchWaits = tuple[float | None, bool, list[Row]]
"""How much of its time a CUDA device waits for launches, None without a trace; whether it waits; evidence."""


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
    taken, is_waiting, evidence = waits
    if not is_waiting or (taken is not None and taken < 0.15):
        return None
    title, lost = "the host needs as long to launch a step's kernels as the device has for them", None
    computed, remedies = case.compute_seconds, []
    if taken is not None:
        title = f"the device waits for the next kernel to be launched in {share(taken)} of its time"
        lost = taken * computed
    times = batching.fitting_times(case, batching.MOST_TIMES) or 1
    if times > 1:
        basis = f"as many launches for {times} times the rows"
        gain = None if lost is None else case.gain(lost * (1 - 1 / times), basis)
        remedies.append(batching.larger_micro_batch(case.rows, case.accumulated, times, gain))
    if not case.settings("model").get("compiled"):
        gain = None if lost is None else case.gain(_FUSED * lost, "half of the waits, by fused operators: an estimate")
        costs = "minutes of compilation at the start, and again for every new shape"
        remedies.append(Remedy("compile the model", {"train.torch_compile": True}, costs, gain))
    return finding(
        title,
        [*evidence, ("forward and backward", computed, "seconds", "steps.jsonl: phase_seconds")],
        remedies,
        case.cost(lost),
        confidence="possible" if taken is None else "measured",
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
    return share, idle.launch_bound_seconds >= idle.host_bound_seconds, evidence


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
    return None, host >= 0.95 * device and used < 0.35, evidence


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
    reads, lines = _reads(own), len({(site["file"], site["line"]) for site in own})
    if reads >= micro_batches:
        title = (
            f"your code reads tensors {'once' if reads == 1 else f'{reads:g} times'} per step, at "
            f"{counted(lines, 'line')}, first {_place(own[0])}"
        )
        if not on_device:
            title += "; on a CPU that costs little, on a GPU each read waits until the device is done"
        what = (
            "keep tensors on the device and read them at the log interval: add up loss.detach(), and call .item() when "
            "it is logged; let torch.where or masks decide, not if"
        )
        seconds = sum(float(site.get("seconds_per_step") or 0) for site in own) * case.account.steps.count
        by_libraries = ("reads by libraries, per step", _reads(inside), "count", "spans.jsonl: synchronisations")
        return finding(
            title,
            [*_read_evidence(own), by_libraries],
            [Remedy(what)],
            case.cost(min(seconds, case.loop_seconds)) if on_device else case.cost(),
            confidence="measured" if on_device else "likely",
        )
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


def _read_evidence(sites: Sequence[Site]) -> list[Row]:
    named = [(f"reads per step at {_place(one)} in {one['function']}, {one['operator']}", one) for one in sites[:5]]
    return [(what, float(one["count_per_step"]), "count", "spans.jsonl: synchronisations.sites") for what, one in named]


def _place(site: Site) -> str:
    return f"{'/'.join(PurePath(str(site['file'])).parts[-2:])}:{site['line']}"


@rule()
def host_to_device_copy(case: Case) -> Verdict:
    """On a GPU, a twentieth of the loop or more goes into handing it the batches: pageable, in pieces, or blocking."""
    if not case.on_cuda:
        return None
    first, batch = case.first, case.facts.get("loader", {}).get("first_batch")
    if not batch or "bytes" not in first.loader:
        instruments = "EfficientTrainerMixin; profile.trace shows every copy"
        return abstains("what the batches hold is not recorded", instruments)
    steps, steady = case.account.steps.count, first.steady
    waits = sum(np.nan_to_num(first.loader[name]) for name in ("wait_seconds", "start_seconds", "end_seconds"))
    around = np.maximum(0.0, first.phase("data_wait") - waits)
    seconds = float((first.phase("host_to_device") + around)[steady].mean())
    taken = case.share(seconds * steps)
    if taken < MATTERS:
        return None
    held = float(np.nanmean(first.loader["bytes"][steady]))
    tensors = len(batch) * float(np.nanmean(first.loader["batches"][steady]))
    pinned = all(bool(tensor.get("pinned")) for tensor in batch.values())
    least = held / _PINNED_BYTES_PER_SECOND + tensors * _CALL_SECONDS  # page-locked, one call per tensor
    saved = max(0.0, seconds - least) * steps
    gain = case.gain(saved, "copies from pinned memory at 12 GB/s, and 10 µs for each tensor")
    overrides: dict[str, Any] = {"train.accelerator_config": {"non_blocking": True}}
    if tensors >= 16 and held < (64 << 10) * tensors:
        kind = "in many small pieces"
        remedy = Remedy("put what a batch holds into fewer, larger tensors in the collator")
    elif pinned:
        kind, remedy = "from pinned memory", Remedy("copy without waiting", overrides, gain=gain)
    else:
        overrides["train.dataloader_pin_memory"] = True
        kind, what = "from pageable memory", "load into pinned memory, and copy without waiting"
        remedy = Remedy(what, overrides, "memory that cannot be swapped", gain)
    spent = "steps.jsonl: host_to_device, and data_wait without the loader's"
    return finding(
        f"{share(taken)} of the training loop hands batches to the GPU {kind}: "
        f"{size(round(held))} in {short_seconds(seconds)} per step",
        [
            ("host time of a step's copies", seconds, "seconds", spent),
            ("bytes of a step", held, "bytes", "steps.jsonl: loader.bytes"),
            ("tensors of a step", tensors, "count", "spans.jsonl: loader.first_batch"),
            ("page-locked", "yes" if pinned else "no", "", "spans.jsonl: loader.first_batch"),
        ],
        [remedy],
        case.cost(saved),
        confidence="likely",
    )
