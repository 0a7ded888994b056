"""What a run computed and on what: tokens, sequences, FLOPs, the data loader, memory."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from hf_efficient.accounting.run_records import ProcessSpans, last_stated
from hf_efficient.accounting.steps import LOADER_SECONDS, RankSteps, StepColumns, nanoseconds, total
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.estimate.throughput import utilization
from hf_efficient.records import amounts
from hf_efficient.records.events import DataFacts, LoaderFacts, MemoryFacts, WorkFacts

_BY_CALLBACK = "a callback is given neither the trainer nor its batches; EfficientTrainer counts FLOPs"
_NO_FACTS = "the records do not say what the model computes"
_NO_BATCHES = (
    "the batches do not show their sequences: no input_ids, or an attention_mask or position_ids of another kind"
)


def token_account(ranks: Sequence[RankSteps], training_seconds: float) -> amounts.TokenAccount:
    """All ranks together; ``training_seconds``: the largest of any rank."""
    processed, real = _count(ranks, "processed"), _count(ranks, "non_padding")
    return amounts.TokenAccount(
        processed=processed,
        non_padding=real,
        target=_count(ranks, "target"),
        padding_share=1 - real / processed if processed and real is not None else None,
        non_padding_tokens_per_second=_rate(real, training_seconds),
        processed_tokens_per_second=_rate(processed, training_seconds),
    )


def _count(ranks: Sequence[RankSteps], name: str) -> int | None:
    return sum_if_known([segment.counts[name] for rank in ranks for segment in rank.segments])


def _rate(count: int | None, seconds: float) -> float | None:
    return count / seconds if count is not None and seconds > 0 else None


def work_account(
    processes: Sequence[ProcessSpans], ranks: Sequence[RankSteps], training_seconds: float
) -> amounts.WorkAccount:
    """All ranks together; MFU and HFU over the training loop. Dtype and peak are of the last call."""
    stated = [one for process in processes for one in process.work]
    told = stated[-1] if stated else WorkFacts()
    model, hardware = _count(ranks, "model_flops"), _count(ranks, "hardware_flops")
    peak, estimated = told.peak_flops_per_second, told.peak_estimated
    accelerators = told.accelerators * max(1, len(ranks))
    mfu = utilization(model, training_seconds, peak, accelerators, peak_estimated=estimated)
    hfu = utilization(hardware, training_seconds, peak, accelerators, peak_estimated=estimated)
    if model is None:
        nothing = _NO_BATCHES if stated else _BY_CALLBACK if processes[-1].way == "callback" else _NO_FACTS
        has_steps = any(rank.segments for rank in ranks)
        reasons = [one.reason for one in stated if one.reason] or [nothing if has_steps else "no step was recorded"]
    else:
        reasons = [told.peak_reason or mfu.reason or ""] if mfu.share is None else []
        if hardware is None:
            reasons += [one.hardware_reason for one in stated if one.hardware_reason] or [hfu.reason or ""]
    return amounts.WorkAccount(
        model_flops=model,
        hardware_flops=hardware,
        mfu=mfu.share,
        hfu=hfu.share,
        peak_flops_per_second=peak,
        peak_source=told.peak_source,
        peak_estimated=estimated,
        accelerators=accelerators,
        dtype=told.dtype,
        reason="; ".join(dict.fromkeys(reason for reason in reasons if reason)) or None,
    )


def sequence_account(
    processes: Sequence[ProcessSpans],
    ranks: Sequence[RankSteps],
    non_padding_tokens: int | None,
    training_seconds: float,
) -> amounts.SequenceAccount:
    """All ranks together; the packing is what rank 0's last process with one stated."""
    packed = last_stated(processes, "data", DataFacts) or DataFacts()
    segments = [segment for rank in ranks for segment in rank.segments]
    documents = _count(ranks, "documents")
    if not documents:
        return amounts.SequenceAccount(fill_rate=packed.fill_rate)
    buckets: Counter[str] = Counter()
    for segment in segments:
        buckets.update(segment.length_buckets)
    return amounts.SequenceAccount(
        rows=_count(ranks, "rows"),
        samples=documents,
        mean_tokens=non_padding_tokens / documents if non_padding_tokens is not None else None,
        shortest_tokens=int(min(segment.shortest for segment in segments)),
        longest_tokens=int(max(segment.longest for segment in segments)),
        length_buckets={bound: buckets[bound] for bound in sorted(buckets, key=int)},
        samples_per_second=_rate(documents, training_seconds),
        fill_rate=packed.fill_rate,
    )


def preference_account(processes: Sequence[ProcessSpans], steps: StepColumns) -> amounts.PreferenceAccount | None:
    """None of a run that compared no answers, or has logged nothing of them."""
    known = {name: held[np.isfinite(held)] for name, held in steps.preferences.items()}
    known = {name: held for name, held in known.items() if len(held)}
    if not known:
        return None
    first, last = ({name: float(held[place]) for name, held in known.items()} for place in (0, -1))
    return amounts.PreferenceAccount(first, last, last_stated(processes, "answers", amounts.AnswerLengths))


def loader_account(processes: Sequence[ProcessSpans], steps: StepColumns) -> amounts.LoaderAccount | None:
    """The loader of rank 0, as its last process stated it; None where it was watched in no step."""
    if not steps.loader:
        return None
    watched = ~np.isnan(steps.loader["batches"])
    held = {name: values[watched] for name, values in steps.loader.items()}
    rows, ready = held.get("rows"), held.get("ready")
    asked = None if ready is None else float(held["batches"][~np.isnan(ready)].sum())
    setup = last_stated(processes, "loader", LoaderFacts) or LoaderFacts()
    sums: dict[str, Any] = {name: int(held[name].sum()) for name in ("batches", "bytes", "fetched", "read_bytes")}
    sums |= {name: nanoseconds(held[name]) / 1e9 for name in LOADER_SECONDS}
    return amounts.LoaderAccount(
        steps=int(watched.sum()),
        epochs=int((held["start_seconds"] > 0).sum()),
        rows=None if rows is None else total(rows),
        **sums,
        mean_ready=float(np.nansum(ready)) / asked if ready is not None and asked else None,
        **msgspec.structs.asdict(setup),
    )


_RETRIES = "device_allocation_retries"
MEMORY_CATEGORIES = ("weights", "adapter", "gradients", "optimizer_state", "activations", "logits", "rest")
"""In the order in which they come to be."""


def peaks_of(processes: Sequence[ProcessSpans]) -> dict[str, Any]:
    names = ("peak_rss_bytes", "device_peak_allocated_bytes", "device_peak_reserved_bytes")
    return {name: max((one.memory[name] for one in processes if name in one.memory), default=None) for name in names}


def memory_account(processes: Sequence[ProcessSpans], steps: StepColumns) -> amounts.MemoryAccount:
    """Peaks over all processes of rank 0, whose steps are given; the categories of the last process with most."""
    retries = [one.memory[_RETRIES] for one in processes if _RETRIES in one.memory]
    peaks = {name: int(np.nanmax(held)) for name, held in steps.phase_peaks.items()}
    counted, found = _most_counted(processes), counted_categories(processes)
    rest = None if counted is None else _rest(*counted, found)
    return amounts.MemoryAccount(
        **peaks_of(processes),
        device_allocation_retries=sum(retries) if retries else None,
        phase_peak_allocated_bytes=peaks or None,
        categories=found if rest is None else [*found, rest],
    )


def counted_categories(processes: Sequence[ProcessSpans]) -> list[amounts.MemoryCategory]:
    """Of one rank: what the last process with most of them counted; empty where nothing was."""
    counted = _most_counted(processes)
    known = {} if counted is None else {one.name: one for one in counted[1].categories}
    return [known[name] for name in MEMORY_CATEGORIES if name in known]


def _most_counted(processes: Sequence[ProcessSpans]) -> tuple[ProcessSpans, MemoryFacts] | None:
    """A process that ended before its first step has fewer; of equals the last."""
    stated = [(one, facts) for one in reversed(processes) if (facts := one.stated("memory", MemoryFacts)) is not None]
    best = max(stated, key=lambda one: len(one[1].categories), default=None)
    return best if best is not None and best[1].categories else None


def _rest(
    process: ProcessSpans, facts: MemoryFacts, found: Sequence[amounts.MemoryCategory]
) -> amounts.MemoryCategory | None:
    """What is left of the peak of the device that trains; None where no peak of it is known."""
    on_cpu = facts.device.startswith("cpu")
    peak = process.memory.get("peak_rss_bytes" if on_cpu else "device_peak_allocated_bytes")
    if peak is None:
        return None
    size = peak - sum(category.bytes for category in found)
    note, names = "of the peak: temporary tensors", {category.name for category in found}
    if "activations" not in names:
        note += ", activations and logits"
    if "gradients" not in names:
        note += ", gradients"
    if on_cpu:
        note += ", Python with its libraries, and the data"
    if size < 0:
        note = "negative, since what is counted above is not all there at one moment, the moment of the peak"
    return amounts.MemoryCategory("rest", size, "derived", note)
