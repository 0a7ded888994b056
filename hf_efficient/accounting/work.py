"""The FLOPs of a run against what its devices could have done.

The sequences of a run, from the sums of its steps.

Peaks of memory, and what the memory was used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.step_sums import SequenceSums, WorkSums
from hf_efficient.accounting.steps import RankSteps, SegmentSteps
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.estimate.throughput import utilization
from hf_efficient.records.account import NotMeasured
from hf_efficient.records.amounts import MemoryAccount, MemoryCategory, SequenceAccount, WorkAccount

_BY_CALLBACK = "a callback is given neither the trainer nor its batches; EfficientTrainer counts FLOPs"
_NO_FACTS = "the records do not tell what the model computes"
_NO_BATCHES = "the batches do not tell their sequences: no attention_mask and no position_ids that start again at 0"


def work_account(processes: Sequence[ProcessSpans], ranks: Sequence[RankSteps], training_seconds: float) -> WorkAccount:
    """All ranks together; MFU and HFU over the training alone, data wait and logging included.

    Args:
        processes: of rank 0; the ``train()`` call that did the last step is believed on dtype, peak and accelerators.
        ranks: of all ranks.
        training_seconds: the largest of any rank.
    """
    segments = [segment for rank in ranks for segment in rank.segments]
    stated = _stated(processes)
    told = stated(segments[-1].segment if segments else -1) or {}
    sums = [segment.sums.work for segment in segments]
    model = sum_if_known([None if one is None else one.model_flops for one in sums])
    hardware = sum_if_known([None if one is None else one.hardware_flops for one in sums])
    peak, estimated = told.get("peak_flops_per_second"), bool(told.get("peak_estimated"))
    accelerators = int(told.get("accelerators", 1)) * max(1, len(ranks))
    mfu = utilization(model, training_seconds, peak, accelerators, peak_estimated=estimated)
    hfu = utilization(hardware, training_seconds, peak, accelerators, peak_estimated=estimated)
    if model is None:
        by_callback = bool(processes) and processes[-1].way == "callback"
        why = {segment.segment: _why_no_flops(stated(segment.segment), by_callback) for segment in segments}
        reasons = _of_steps(segments, why, lambda work: work is None) or ["no step was recorded"]
    else:
        reasons = [told.get("peak_reason") or mfu.reason or ""] if mfu.share is None else []
        if hardware is None:
            facts = {segment.segment: stated(segment.segment) or {} for segment in segments}
            why = {segment: each.get("hardware_reason") or hfu.reason or "" for segment, each in facts.items()}
            reasons += _of_steps(segments, why, lambda work: work is None or work.hardware_flops is None)
    return WorkAccount(
        model_flops=model,
        hardware_flops=hardware,
        mfu=mfu.share,
        hfu=hfu.share,
        peak_flops_per_second=peak,
        peak_source=told.get("peak_source"),
        peak_estimated=estimated,
        accelerators=accelerators,
        dtype=told.get("dtype"),
        reason="; ".join(reason for reason in reasons if reason) or None,
    )


def _stated(processes: Sequence[ProcessSpans]) -> Callable[[int], dict[str, Any] | None]:
    """Gives what a ``train()`` call, by its segment, said of its work; where it said nothing, what the last one did."""
    last = next((one.facts["work"] for one in reversed(processes) if "work" in one.facts), None)
    own: dict[int, dict[str, Any]] = {}
    for process in processes:
        if "work" in process.facts:
            own.update(dict.fromkeys(process.trains, process.facts["work"]))
        own.update(process.work)
    return lambda segment: own.get(segment, last)


def _of_steps(
    segments: Sequence[SegmentSteps], why: Mapping[int, str], lacks: Callable[[WorkSums | None], bool]
) -> list[str]:
    """The reasons of the calls that lack something, each once; with the number of their steps where others do not."""
    steps: dict[str, int] = {}
    for segment in segments:
        if lacks(segment.sums.work):
            steps[why[segment.segment]] = steps.get(why[segment.segment], 0) + segment.steps
    total = sum(segment.steps for segment in segments)
    return [reason if count == total else f"{reason} ({count} of {total} steps)" for reason, count in steps.items()]


def work_gaps(account: WorkAccount) -> list[NotMeasured]:
    """What of the work is not known, and why."""
    if account.reason is None:
        return []
    if account.model_flops is None:
        what = "FLOPs, MFU and HFU"
    elif account.hardware_flops is None:
        what = "FLOPs computed beyond those of the model, and HFU" if account.mfu is not None else "MFU and HFU"
    else:
        what = "MFU and HFU"
    return [NotMeasured(what, account.reason)]


def _why_no_flops(facts: dict[str, Any] | None, by_callback: bool) -> str:
    if facts is None:
        return _BY_CALLBACK if by_callback else _NO_FACTS
    return facts.get("reason") or _NO_BATCHES


def sequence_account(
    processes: Sequence[ProcessSpans],
    ranks: Sequence[RankSteps],
    non_padding_tokens: int | None,
    training_seconds: float,
) -> SequenceAccount:
    """All ranks together.

    Args:
        processes: of rank 0; the last one that tells how its data was packed is believed.
        ranks: of all ranks.
        non_padding_tokens: of all ranks.
        training_seconds: the largest of any rank.
    """
    fill_rate = next((one.facts["data"].get("fill_rate") for one in reversed(processes) if "data" in one.facts), None)
    total = _total(ranks)
    if total is None:
        return SequenceAccount(fill_rate=fill_rate)
    return SequenceAccount(
        rows=total.rows,
        samples=total.documents,
        mean_tokens=non_padding_tokens / total.documents if non_padding_tokens is not None else None,
        shortest_tokens=total.shortest,
        longest_tokens=total.longest,
        length_buckets={bound: total.length_buckets[bound] for bound in sorted(total.length_buckets, key=int)},
        samples_per_second=total.documents / training_seconds if training_seconds > 0 else None,
        fill_rate=fill_rate,
    )


def sequence_gaps(account: SequenceAccount, tokens_known: bool) -> list[NotMeasured]:
    """Why the sequences are not known, where the tokens are."""
    if account.samples is not None or not tokens_known:
        return []
    why = "batches without attention_mask and position_ids, or records of a version that did not tell them"
    return [NotMeasured("sequences and their lengths", why)]


def _total(ranks: Sequence[RankSteps]) -> SequenceSums | None:
    total = SequenceSums()
    for sums in (segment.sums.sequences for rank in ranks for segment in rank.segments):
        if sums is None:
            return None
        total.merge(sums)
    return total if total.documents else None


MEMORY_CATEGORIES = ("weights", "adapter", "gradients", "optimizer_state", "activations", "logits", "rest")
"""In the order in which they come to be."""


def memory_account(processes: Sequence[ProcessSpans], ranks: Sequence[RankSteps]) -> MemoryAccount:
    """Peaks over all processes of rank 0; the categories of the last process that told most of them.

    Args:
        processes: of rank 0.
        ranks: rank 0 first.
    """

    def peak(name: str) -> int | None:
        return max((process.memory[name] for process in processes if name in process.memory), default=None)

    retries = [
        process.memory["device_allocation_retries"]
        for process in processes
        if "device_allocation_retries" in process.memory
    ]
    return MemoryAccount(
        peak_rss_bytes=peak("peak_rss_bytes"),
        device_peak_allocated_bytes=peak("device_peak_allocated_bytes"),
        device_peak_reserved_bytes=peak("device_peak_reserved_bytes"),
        device_allocation_retries=sum(retries) if retries else None,
        phase_peak_allocated_bytes=_phase_peaks(ranks),
        categories=_categories(processes),
    )


def _phase_peaks(ranks: Sequence[RankSteps]) -> dict[str, int] | None:
    peaks: dict[str, int] = {}
    for segment in ranks[0].segments if ranks and ranks[0].rank == 0 else ():
        for name, size in segment.phase_peak_bytes.items():
            peaks[name] = max(size, peaks.get(name, 0))
    return peaks or None


def counted_categories(processes: Sequence[ProcessSpans]) -> list[MemoryCategory]:
    """Of one rank: what the last process that told most of them counted; empty where nothing was.

    Args:
        processes: of the rank.
    """
    told = _telling(processes)
    if told is None:
        return []
    known = {str(one["name"]): MemoryCategory(**one) for one in told.facts["memory"]["categories"]}
    return [known[name] for name in MEMORY_CATEGORIES if name in known]


def _categories(processes: Sequence[ProcessSpans]) -> list[MemoryCategory]:
    told, found = _telling(processes), counted_categories(processes)
    rest = None if told is None else _rest(told, told.facts["memory"], found)
    return found if rest is None else [*found, rest]


def _telling(processes: Sequence[ProcessSpans]) -> ProcessSpans | None:
    told = max(reversed(processes), key=_counted, default=None)  # of equals the last
    return told if told is not None and _counted(told) else None


def _counted(process: ProcessSpans) -> int:
    """How many categories it told: one that ended before its first step tells fewer."""
    return len(process.facts.get("memory", {}).get("categories", ()))


def _rest(process: ProcessSpans, facts: dict[str, Any], found: Sequence[MemoryCategory]) -> MemoryCategory | None:
    """What is left of the peak of the device that trains; None where no peak of it is known."""
    on_cpu = str(facts["device"]).startswith("cpu")
    peak = process.memory.get("peak_rss_bytes" if on_cpu else "device_peak_allocated_bytes")
    if peak is None:
        return None
    size = peak - sum(category.bytes for category in found)
    note = "of the peak: temporary tensors"
    if not any(category.name == "activations" for category in found):
        note += ", activations and logits"
    if on_cpu:
        note += ", Python with its libraries, and the data"
    if size < 0:
        note = "negative, since what is counted above is not all there at one moment, the moment of the peak"
    return MemoryCategory("rest", size, "derived", note)
