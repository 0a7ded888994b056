"""How much memory the device that trains has left, and what more rows, or kept activations, would take of it.

Smaller micro-batches, with a global batch that stays what it is.

How often the allocator had to free its cache, and what that took.

What activation checkpointing takes: the forward of the layers, computed a second time in the backward.

A run that ended because the device had no memory left.

A peak so near the device's memory that a longer batch, or an evaluation, ends the run.

A micro-batch too large for the memory beside it: the allocator frees its cache to make room, again and again.

Memory that the allocator holds and cannot use, and the flushes of its cache that this takes.

Logits, a number per position and word of the vocabulary, that make the peak.

Optimizer state that takes the most memory.

How memory grew over the steps of rank 0, on the device and in its process.

Memory that grows with every step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_efficient.diagnosis.case import Case, in_the_loop
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.estimate.allocator import CONTEXT, nccl_bytes
from hf_efficient.estimate.statistics import steady_growth
from hf_efficient.records.findings import Evidence, Finding, Gain, Remedy
from hf_efficient.text import count, share, size

PERSISTENT = ("weights", "adapter", "gradients", "optimizer_state")
"""What is there however large the micro-batch is."""

_MAY_FILL = 0.8
_TEMPORARY = 2.0


@dataclass(frozen=True)
class MemoryRoom:
    """Of one device; on a CPU, of the host.

    Attributes:
        device_bytes: all of it.
        held_bytes: at the peak, by this process; on a CPU by all processes.
        idle_bytes: nobody's at the peak.
        fillable_bytes: four fifths of them: what a change may take, by an estimate, and still be safe.
        source: of ``held_bytes``.
    """

    device_bytes: int
    held_bytes: int
    source: str

    @property
    def idle_bytes(self) -> int:
        """Nobody's at the peak."""
        return max(0, self.device_bytes - self.held_bytes)

    @property
    def fillable_bytes(self) -> int:
        """Four fifths of the idle ones."""
        return int(_MAY_FILL * self.idle_bytes)

    @property
    def share(self) -> float:
        """Of the device's memory that is held."""
        return self.held_bytes / self.device_bytes if self.device_bytes else 0.0


def usable_bytes(case: Case) -> int | None:
    """What tensors may take of a CUDA device: its memory less the CUDA context's, and NCCL's buffers (estimates)."""
    total = case.settings("device").get("memory_bytes")
    if not total or not case.on_cuda:
        return None
    return int(total) - CONTEXT.bytes - nccl_bytes(len(case.account.ranks))


def memory_room(case: Case) -> MemoryRoom | None:
    """None where the device's memory, or what was held of it, is not known.

    A CUDA device: what torch's allocator reserved at its peak, and what the process holds beside it. A CPU: the host's
    memory less what was available of it at the least.
    """
    if case.on_cuda:
        usable, reserved = usable_bytes(case), case.account.memory.device_peak_reserved_bytes
        if usable is None or reserved is None:
            return None
        return MemoryRoom(usable, reserved, "run.json: memory.device_peak_reserved_bytes")
    total = case.settings("device").get("memory_bytes")
    if not total:
        return None
    series = case.series.system.host_available_bytes.low if case.series is not None else []
    available = [value for value in series if value is not None]
    if available:
        return MemoryRoom(int(total), int(total - min(available)), "system.jsonl: host_available_bytes")
    resident = case.account.memory.peak_rss_bytes
    return None if resident is None else MemoryRoom(int(total), resident, "run.json: memory.peak_rss_bytes")


def category_bytes(case: Case, *names: str) -> int | None:
    """Of these kinds of tensor together; None where none of them was counted."""
    found = [one.bytes for one in case.account.memory.categories if one.name in names]
    return sum(found) if found else None


def position_bytes(case: Case) -> tuple[float, int] | None:
    """What each position of a micro-batch takes at the peak, and how many the largest micro-batch had.

    On a CUDA device the measured peak without what is there for any micro-batch; on a CPU, whose peak holds the
    libraries too, twice what a forward keeps for its backward, whose gradients and temporary tensors come on top.
    None where it was not counted.
    """
    positions = case.facts.get("memory", {}).get("positions")
    kept = category_bytes(case, "activations", "logits")
    if not positions or kept is None:
        return None
    peak, persistent = case.account.memory.device_peak_allocated_bytes, category_bytes(case, *PERSISTENT)
    if case.on_cuda and peak is not None and persistent is not None:
        return max(peak - persistent, kept) / positions, int(positions)
    return _TEMPORARY * kept / positions, int(positions)


def smaller_micro_batch(case: Case) -> dict[str, Any] | None:
    """Half of the rows, or the most below that which divide a step's rows; None where there is but one.

    Hand-worked: 5 rows accumulated twice are 10: of 2 or fewer rows 2 divide them, 5 times.
    """
    rows = int(case.argument("per_device_train_batch_size") or 1)
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    fewer = next((few for few in range(rows // 2, 0, -1) if rows * accumulated % few == 0), None)
    if fewer is None:
        return None
    return {
        "train.per_device_train_batch_size": fewer,
        "train.gradient_accumulation_steps": rows * accumulated // fewer,
    }


def retries_after_warm_up(case: Case) -> int:
    """On rank 0, over all its processes, each of which counts from its own start; 0 without a CUDA device."""
    first = case.first
    if first is None:
        return 0
    told = first.allocation_retries[first.steady]
    known = told[np.isfinite(told)]
    return int(np.maximum(np.diff(known), 0).sum())


def retry_seconds(case: Case) -> float | None:
    """What the steps in which the count rose took beyond the median of the others; None where there are none."""
    first = case.first
    if first is None:
        return None
    rose = np.diff(first.allocation_retries, prepend=first.allocation_retries[:1]) > 0
    rose &= first.steady
    others = first.step_seconds[first.steady & ~rose]
    if not rose.any() or not len(others):
        return None
    return float(np.maximum(first.step_seconds[rose] - np.median(others), 0).sum())


KEPT_TIMES = 30
"""What a layer keeps for its backward, in sizes of its input, which is all that a checkpointed one keeps.

An estimate. Korthikanti et al. 2022 (arXiv 2205.05198, section 4) count 34 bytes per value against 2 in 16 bits, 17
times, for a layer without gate and adapter. A gated layer under LoRA keeps more: Llama-3.1-8B, 4 x 2048 tokens, LoRA,
simulated on 2026-11-20: 84.3 GiB against 29.3 with checkpointing, whose inputs are 2 GiB: 28 times.
"""


def recompute_share(case: Case) -> float | None:
    """Of the FLOPs computed, those of the second forward; None where FLOPs are not counted.

    What is computed beyond the model's FLOPs is padding, masked pairs and recompute. Padding is taken out by its share
    of the positions. Masked pairs stay in: this is the most that it can be.

    Hand-worked: 800 computed, 300 of the model, half of the positions padding: 300 / 0.5 = 600; 200 / 800 = 0.25.
    """
    work, padded = case.account.work, case.account.tokens.padding_share
    if not work.hardware_flops or not work.model_flops or padded is None or padded >= 1:
        return None
    return max(0.0, 1 - work.model_flops / (1 - padded) / work.hardware_flops)


def recomputed_seconds(case: Case) -> float | None:
    """Of the loop, the time of the second forward: the shorter of two estimates; None without forward and backward.

    By time: the first forward took as long, as far as it was the layers' and not the head's; the head's share is that
    of the FLOPs. By FLOPs: their share of forward and backward.

    Hand-worked: forward 100 s, backward 260 s, a quarter of the FLOPs recomputed, all weights trained, so that a third
    of the other FLOPs is forward: recompute over forward = 0.25 / (0.75 / 3) = 1, so 100 s by time; 90 s by FLOPs.
    """
    first = case.first
    if first is None or not first.phase("forward").any():
        return None
    over_the_run = case.loop_seconds / float(first.wall_seconds.sum())
    forward = _seconds(case, "forward") * over_the_run
    share = recompute_share(case)
    if share is None:
        return forward
    computed = float(first.compute_seconds.sum()) * over_the_run
    of_forward = share / ((1 - share) / (2 if _is_mostly_frozen(case) else 3)) if share < 1 else 1.0
    return min(forward * min(1.0, of_forward), computed * share)


def checkpointing_override(case: Case, on: bool) -> dict[str, bool]:
    """Under the name that the run itself used; the newer one counts where it is given."""
    newer = case.argument("activation_checkpointing") is not None
    return {f"train.{'activation_checkpointing' if newer else 'gradient_checkpointing'}": on}


def _is_mostly_frozen(case: Case) -> bool:
    """An adapter is trained: the backward then has about as many FLOPs as the forward, else twice as many."""
    model = case.settings("model")
    trained, all_of_them = model.get("trainable_parameters"), model.get("parameters")
    return bool(trained and all_of_them and trained < 0.5 * all_of_them)


def _seconds(case: Case, phase: str) -> float:
    """Of the records of rank 0; on the device where its own events were read, since the host runs ahead of it."""
    first = case.first
    assert first is not None
    device = first.device_seconds.get(phase)
    return float(first.phase(phase).sum()) if device is None else float(device[device == device].sum())


_TOLD = re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|DefaultCPUAllocator", re.IGNORECASE)


def out_of_memory(case: Case) -> Verdict:
    """The exception that ended it says so; the remedy is the plan's, which simulates every change that could fit."""
    account = case.account
    if account.ended != "error" or not _TOLD.search(account.error or ""):
        return None
    evidence = [
        Evidence("what ended the run", account.error or "", "", "run.json: error"),
        Evidence("optimizer steps before", account.steps.count, "count", "run.json: steps.count"),
    ]
    memory, total = account.memory, case.settings("device").get("memory_bytes")
    if memory.device_peak_allocated_bytes is not None:
        source = "run.json: memory.device_peak_allocated_bytes"
        evidence.append(Evidence("peak of the tensors", memory.device_peak_allocated_bytes, "bytes", source))
    if total:
        evidence.append(Evidence("memory of the device", int(total), "bytes", "spans.jsonl: settings.device"))
    remedies = [Remedy("let the plan simulate what would fit: hf-efficient plan RECIPE --advise")]
    fewer = smaller_micro_batch(case)
    if fewer is not None:
        remedies.append(Remedy("take fewer rows into a micro-batch", fewer, "smaller kernels"))
    if case.settings("model").get("activation_checkpointing") is False:
        on = checkpointing_override(case, True)
        remedies.append(Remedy("checkpoint the activations", on, "the forward is computed twice"))
    return Finding("out_of_memory", "the run ran out of memory", "critical", "measured", evidence, remedies=remedies)


_NEAR = 0.95
_NEAR_ON_A_HOST = 0.97
_TENSORS = 0.85


def near_out_of_memory(case: Case) -> Verdict:
    """95% of what tensors may take of a CUDA device were reserved; on a CPU, 97% of the host's memory were taken.

    What is reserved beyond the tensors' own peak is cache, which the allocator frees before it gives up: on batches of
    many sizes it fills the device of a healthy run. So the tensors must have taken 85% themselves.
    """
    room = memory_room(case)
    if room is None:
        return abstains("near_out_of_memory", "the device's memory, or its peak, is not known") if case.first else None
    if room.share < (_NEAR if case.on_cuda else _NEAR_ON_A_HOST):
        return None
    tensors = case.account.memory.device_peak_allocated_bytes
    if case.on_cuda and tensors is not None and tensors < _TENSORS * room.device_bytes:
        return None
    evidence = [
        Evidence("memory taken at the peak", room.held_bytes, "bytes", room.source),
        Evidence("memory of the device", room.device_bytes, "bytes", "spans.jsonl: settings.device.memory_bytes"),
        Evidence("share", room.share, "share", room.source),
    ]
    longest = case.account.sequences.longest_tokens
    if longest is not None:
        evidence.append(Evidence("longest document so far", longest, "tokens", "run.json: sequences.longest_tokens"))
    return Finding(
        rule="near_out_of_memory",
        title=f"{share(room.share)} of the memory are taken: {size(room.idle_bytes)} are left for a longer batch",
        severity="warning",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(held_bytes=room.held_bytes),
        remedies=_remedies(case),
        explains=["fragmentation"],
    )


def _remedies(case: Case) -> list[Remedy]:
    """What keeps the training what it is, the least costly first."""
    found = []
    fewer = smaller_micro_batch(case)
    if fewer is not None:
        found.append(Remedy("take fewer rows into a micro-batch", fewer, "more and smaller kernels"))
    if case.settings("model").get("activation_checkpointing") is False:
        on = checkpointing_override(case, True)
        found.append(Remedy("checkpoint the activations", on, "the forward is computed twice"))
    found.append(Remedy("let the plan simulate what gives room: hf-efficient plan RECIPE --advise"))
    return found


_FULL = 0.9


def large_micro_batch(case: Case) -> Verdict:
    """Retries after warm-up while nine tenths of the device are taken: half of the rows would do without.

    With room left, retries are the fault of torn memory (``fragmentation``).
    """
    room, rows = memory_room(case), int(case.argument("per_device_train_batch_size") or 1)
    retries = retries_after_warm_up(case)
    if not case.on_cuda or room is None or rows < 2 or not retries or room.share < _FULL:
        return None
    fewer = smaller_micro_batch(case)
    if fewer is None:
        return None
    seconds = retry_seconds(case)
    basis = "steps with a retry as long as those without; what smaller kernels cost is not counted"
    gain = None if seconds is None else case.gain(seconds, basis)
    return Finding(
        rule="large_micro_batch",
        title=f"micro-batches of {rows} rows fill the memory: the allocator had to free its cache {retries} times",
        severity="warning",
        confidence="likely",
        evidence=[
            Evidence("retries after warm-up", retries, "count", "steps.jsonl: memory.allocation_retries"),
            Evidence("memory taken at the peak", room.share, "share", room.source),
            Evidence("rows of a micro-batch", rows, "count", "spans.jsonl: settings.arguments"),
        ],
        cost=case.cost(seconds),
        remedies=[Remedy("take fewer rows into a micro-batch", fewer, "more and smaller kernels", gain)],
        explains=["fragmentation", "near_out_of_memory"],
    )


_TOO_MUCH = 0.3
_LEAST_BYTES = 1 << 30


def fragmentation(case: Case) -> Verdict:
    """Retries after warm-up, or a peak of what is reserved that is 30% and 1 GiB above that of the tensors.

    A retry frees the whole cache, which waits for the device, and every allocation after it asks the driver again.
    """
    memory, first = case.account.memory, case.first
    reserved, allocated = memory.device_peak_reserved_bytes, memory.device_peak_allocated_bytes
    if first is None or reserved is None or allocated is None:
        return None  # no CUDA device
    gap, retries = reserved - allocated, retries_after_warm_up(case)
    torn = gap >= _LEAST_BYTES and gap > _TOO_MUCH * reserved
    if not retries and not torn:
        return None
    evidence = [
        Evidence("reserved at the peak", reserved, "bytes", "run.json: memory.device_peak_reserved_bytes"),
        Evidence("tensors at the peak", allocated, "bytes", "run.json: memory.device_peak_allocated_bytes"),
        Evidence("retries after warm-up", retries, "count", "steps.jsonl: memory.allocation_retries"),
    ]
    seconds = retry_seconds(case) if retries else None
    if seconds is not None:
        evidence.append(Evidence("steps with a retry took longer by", seconds, "seconds", "steps.jsonl: wall_seconds"))
    told = f"the allocator had to free its cache {retries} times" if retries else f"{size(gap)} are reserved and unused"
    remedies = [
        Remedy(
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment of the run",
            gain=None if seconds is None else case.gain(seconds, "steps with a retry as long as those without"),
        )
    ]
    if _sizes_differ(case):
        overrides = {"train.train_sampling_strategy": "group_by_length"}
        remedies.append(Remedy("put examples of like length into a batch", overrides, "another order of examples"))
    return Finding(
        rule="fragmentation",
        title=told,
        severity="warning" if retries else "info",
        confidence="measured" if retries else "likely",
        evidence=evidence,
        cost=case.cost(seconds, gap),
        remedies=remedies,
    )


def _sizes_differ(case: Case) -> bool:
    """Batches of many sizes tear the memory, where they are neither packed nor grouped already."""
    known = case.argument("train_sampling_strategy") is not None
    return known and case.can_be_grouped and not case.argument("packing")


_DOMINATE = 0.3
_TIGHT = 0.7


def logits_spike(case: Case) -> Verdict:
    """Three tenths of a CUDA device's peak or more; a warning where seven tenths of the memory are taken."""
    held, peak = category_bytes(case, "logits"), case.account.memory.device_peak_allocated_bytes
    room = memory_room(case)
    if held is None or peak is None or room is None or not case.on_cuda or held < _DOMINATE * peak:
        return None
    vocabulary = case.settings("model").get("vocabulary_size")
    evidence = [
        Evidence("logits", held, "bytes", "run.json: memory.categories.logits"),
        Evidence("tensors at the peak", peak, "bytes", "run.json: memory.device_peak_allocated_bytes"),
        Evidence("memory taken", room.share, "share", room.source),
    ]
    if vocabulary:
        evidence.append(Evidence("vocabulary", int(vocabulary), "count", "spans.jsonl: settings.model"))
    return Finding(
        rule="logits_spike",
        title=f"the logits are {size(held)}, {share(held / peak)} of the tensors at the peak",
        severity="warning" if room.share >= _TIGHT else "info",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(held_bytes=held),
        remedies=_logits_spike_remedies(case, held),
    )


def _logits_spike_remedies(case: Case, held: int) -> list[Remedy]:
    found = []
    is_sft = case.argument("loss_type") == "nll" and case.argument("packing") is not None
    if is_sft and not case.argument("label_smoothing_factor") and not case.argument("use_liger_kernel"):
        gain = Gain(None, None, held, None, "logits are computed and scored tile by tile, never held whole")
        costs = "the LM head is computed twice"
        found.append(Remedy("score the logits in tiles", {"train.loss_type": "chunked_nll"}, costs, gain))
    fewer = smaller_micro_batch(case)
    if fewer is not None:
        gain = Gain(None, None, held // 2, None, "half of the positions of a micro-batch, or fewer")
        found.append(Remedy("take fewer rows into a micro-batch", fewer, "smaller kernels", gain))
    return found


_DOMINATES = 0.35
_OPTIMIZER_STATE_TIGHT = 0.8
_IN_FLOAT32 = ("adamw_torch", "adamw_torch_fused")


def optimizer_state(case: Case) -> Verdict:
    """More than a third of a CUDA device's tensors at the peak, where four fifths of the memory are taken."""
    held, peak = category_bytes(case, "optimizer_state"), case.account.memory.device_peak_allocated_bytes
    room = memory_room(case)
    if held is None or peak is None or room is None or not case.on_cuda:
        return None
    taken = held / peak
    if taken < _DOMINATES or room.share < _OPTIMIZER_STATE_TIGHT:
        return None
    optimizer = case.argument("optim")
    remedies = []
    if optimizer in _IN_FLOAT32:
        saved = held * 3 // 4
        gain = Gain(None, None, saved, None, "moments of 1 byte in place of 4")
        costs = "the moments are rounded to 8 bits, block by block; its authors saw no loss of quality"
        remedies.append(Remedy("keep AdamW's moments in 8 bits", {"train.optim": "adamw_8bit"}, costs, gain))
    if case.settings("model").get("trainable_parameters") == case.settings("model").get("parameters"):
        remedies.append(Remedy("train an adapter in place of all weights", {"adapter.method": "lora"}, "learns less"))
    return Finding(
        rule="optimizer_state",
        title=f"the optimizer's state is {size(held)}, {share(taken)} of the tensors at the peak",
        severity="info",
        confidence="measured",
        evidence=[
            Evidence("optimizer state", held, "bytes", "run.json: memory.categories.optimizer_state"),
            Evidence("tensors at the peak", peak, "bytes", "run.json: memory.device_peak_allocated_bytes"),
            Evidence("memory taken", room.share, "share", room.source),
        ],
        cost=case.cost(held_bytes=held),
        remedies=remedies,
    )


_SET_APART = 0.1
Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Growth:
    """Memory over the steps after warm-up.

    Attributes:
        known: how many readings there are.
        bytes_per_step: None where it does not grow steadily.
        first_bytes: at their beginning.
        grown_bytes: over them; 0 where it does not grow steadily.
        left_bytes: that are free at their end; None where that is not known.
    """

    known: int
    bytes_per_step: float | None
    first_bytes: float
    grown_bytes: float
    left_bytes: float | None


def device_growth(case: Case) -> Growth | None:
    """Of the tensors on a CUDA device, by their peak in each step; None where it is not known."""
    first, total = case.first, case.settings("device").get("memory_bytes")
    if first is None:
        return None
    peaks = first.peak_allocated_bytes
    steps = np.arange(len(first), dtype=np.float64)
    kept = np.isfinite(peaks) & first.steady & (steps >= _SET_APART * len(first))
    if not kept.any():
        return None
    left = None if not total else float(total) - float(peaks[kept][-1])
    return _growth(steps[kept], peaks[kept], left)


def host_growth(case: Case) -> Growth | None:
    """Of the resident memory of the process, as the sampler read it; None where it is not known."""
    series = case.series
    if series is None or case.first is None:
        return None
    read = [place for place in in_the_loop(case) if series.system.rss_bytes.mean[place] is not None]
    if not read:
        return None
    times = np.array([series.system.started_at_seconds[place] for place in read])
    resident = np.array([series.system.rss_bytes.mean[place] for place in read], dtype=np.float64)
    steps = _steps_at(case, times)
    kept = steps >= max(_SET_APART * steps[-1], float(np.argmax(case.first.steady)))
    if not kept.any():
        return None
    left = series.system.host_available_bytes.low[read[-1]]
    return _growth(steps[kept], resident[kept], left)


def _steps_at(case: Case, times: Column) -> Column:
    """How many steps were done at these times of the run."""
    assert case.series is not None
    steps = case.series.steps
    ends = np.array(steps.started_at_seconds) + np.array(steps.wall_seconds)
    starts = np.array([steps.started_at_seconds[0], *ends])
    return np.asarray(np.interp(times, starts, np.concatenate([[0], np.cumsum(steps.steps)])), dtype=np.float64)


def _growth(steps: Column, held: Column, left: float | None) -> Growth:
    slope = steady_growth(steps, held)
    grown = 0.0 if slope is None else slope * float(steps[-1] - steps[0])
    return Growth(len(steps), slope, float(held[0]), grown, left)


_MEMORY_GROWTH_LEAST_BYTES = 64 << 20
_LEAST_SHARE = 0.05
_FEWEST = 6
_MANY = 30
_WHAT = (
    "let go of what each step leaves behind: keep floats, not tensors (loss.item() at the log interval, .detach() "
    "and .cpu() for what must be kept), and no tensor of a graph in a list or an attribute"
)
_LOOK = "to see which line keeps it: efficiency.profile.memory (on a GPU) or efficiency.profile.host_memory"


def memory_growth(case: Case) -> Verdict:
    """It grows steadily after warm-up, by 64 MiB and a twentieth or more: something is kept from every step.

    A process's memory also grows for some time because the C library keeps what it frees, by half in ten seconds of
    small steps of many sizes: a warning takes thirty readings, or memory that doubles.
    """
    if case.first is None:
        return abstains("memory_growth", NO_STEPS)
    curves = {"the device": device_growth(case), "the process": host_growth(case)}
    known = {where: one for where, one in curves.items() if one is not None and one.known >= _FEWEST}
    if not known:
        return abstains("memory_growth", "memory was read fewer than six times after warm-up", "a longer run")
    for where, growth in known.items():
        if growth.grown_bytes >= max(_MEMORY_GROWTH_LEAST_BYTES, _LEAST_SHARE * growth.first_bytes):
            return _finding(case, where, growth)
    return None


def _finding(case: Case, where: str, growth: Growth) -> Finding:
    assert growth.bytes_per_step is not None
    until = None if growth.left_bytes is None else int(growth.left_bytes / growth.bytes_per_step)
    to_do = int(case.facts.get("run", {}).get("max_steps") or 0) - case.account.steps.count
    fails = until is not None and until < to_do
    sure = where == "the device" or growth.known >= _MANY or growth.grown_bytes >= growth.first_bytes
    source = "steps.jsonl: memory.peak_allocated_bytes" if where == "the device" else "system.jsonl: rss_bytes"
    evidence = [
        Evidence("growth per step", growth.bytes_per_step, "bytes", source),
        Evidence("growth after warm-up", growth.grown_bytes, "bytes", source),
        Evidence("memory at its beginning", growth.first_bytes, "bytes", source),
        Evidence("readings", growth.known, "count", source),
    ]
    if growth.left_bytes is not None and until is not None:
        evidence.append(Evidence("free at the end", growth.left_bytes, "bytes", source))
        evidence.append(Evidence("steps until nothing is free", until, "count", "free memory over growth per step"))
    title = f"the memory of {where} grows by {size(round(growth.bytes_per_step))} with every step"
    if fails and until is not None:
        title += f", and is used up {count(until)} steps further on"
    gain = case.gain(0.0, "nothing is kept from a step", round(growth.grown_bytes))
    return Finding(
        rule="memory_growth",
        title=title,
        severity="critical" if fails and sure else "warning" if sure else "info",
        confidence="measured" if sure else "possible",
        evidence=evidence,
        cost=case.cost(held_bytes=round(growth.grown_bytes)),
        remedies=[Remedy(_WHAT, gain=gain), Remedy(_LOOK)],
    )
