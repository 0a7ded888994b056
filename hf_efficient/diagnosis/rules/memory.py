"""Memory that is full, torn, spent on logits or the optimizer, or that grows; and how much room a run has left."""

import re
from dataclasses import dataclass

import numpy as np

from hf_efficient.accounting.steps import Column
from hf_efficient.diagnosis.case import Case, Verdict, abstains, finding, rule
from hf_efficient.estimate.allocator import CONTEXT_BYTES, nccl_bytes
from hf_efficient.estimate.statistics import steady_growth
from hf_efficient.records.findings import Gain, Remedy
from hf_efficient.text import counted, share, size

PERSISTENT = ("weights", "adapter", "gradients", "optimizer_state")
"""What is there however large the micro-batch is."""
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemoryError|can't allocate memory|DefaultCPUAllocator", re.IGNORECASE)
_PEAK = "run.json: memory.device_peak_allocated_bytes"
_PLAN = "hf-efficient plan RECIPE --advise"
_FREED = "the allocator had to free its cache {}"


@dataclass(frozen=True)
class MemoryRoom:
    """Of one device; on a CPU, of the host, with ``held_bytes`` of all processes at the peak."""

    device_bytes: int
    held_bytes: int
    source: str

    @property
    def idle_bytes(self) -> int:
        return max(0, self.device_bytes - self.held_bytes)

    @property
    def fillable_bytes(self) -> int:
        """Four fifths of the idle ones: what a change may take, by an estimate, and still be safe."""
        return int(0.8 * self.idle_bytes)

    @property
    def share(self) -> float:
        return self.held_bytes / self.device_bytes if self.device_bytes else 0.0


def memory_room(case: Case) -> MemoryRoom | None:
    """None where the device's memory, or what was held of it, is not known. A CUDA device: its memory less the CUDA
    context's and NCCL's buffers (estimates), and what torch's allocator reserved at its peak. A CPU: the host's memory
    less the least that was available."""
    total, memory = case.settings("device").get("memory_bytes"), case.account.memory
    if not total:
        return None
    if case.on_cuda:
        reserved = memory.device_peak_reserved_bytes
        usable = int(total) - CONTEXT_BYTES - nccl_bytes(len(case.account.ranks))
        return None if reserved is None else MemoryRoom(usable, reserved, "run.json: memory.device_peak_reserved_bytes")
    series = case.series.system.host_available_bytes.low if case.series is not None else []
    available = [value for value in series if value is not None]
    if available:
        return MemoryRoom(int(total), int(total - min(available)), "system.jsonl: host_available_bytes")
    resident = memory.peak_rss_bytes
    return None if resident is None else MemoryRoom(int(total), resident, "run.json: memory.peak_rss_bytes")


def category_bytes(case: Case, *names: str) -> int | None:
    found = [one.bytes for one in case.account.memory.categories if one.name in names]
    return sum(found) if found else None


def position_bytes(case: Case) -> tuple[float, int] | None:
    """What each position of a micro-batch takes at the peak, and how many the largest micro-batch had. On a CUDA device
    the measured peak without what is there for any micro-batch; on a CPU twice what a forward keeps for its backward,
    for gradients and temporary tensors. None where it was not counted."""
    positions = case.facts.get("memory", {}).get("positions")
    kept = category_bytes(case, "activations", "logits")
    if not positions or kept is None:
        return None
    peak, persistent = case.account.memory.device_peak_allocated_bytes, category_bytes(case, *PERSISTENT)
    if case.on_cuda and peak is not None and persistent is not None:
        return max(peak - persistent, kept) / positions, int(positions)
    return 2.0 * kept / positions, int(positions)


def fewer_rows(case: Case, costs: str, gain: Gain | None = None) -> list[Remedy]:
    """Half of the rows, or the most below that which divide a step's rows; none where there is but one. Hand-worked: 5
    rows accumulated twice are 10: of 2 or fewer rows 2 divide them, 5 times."""
    all_rows = case.rows * case.accumulated
    if case.rows < 2:
        return []
    few = next(few for few in range(case.rows // 2, 0, -1) if all_rows % few == 0)
    fewer = {"train.per_device_train_batch_size": few, "train.gradient_accumulation_steps": all_rows // few}
    return [Remedy("take fewer rows into a micro-batch", fewer, costs, gain)]


def checkpointing_override(case: Case, on: bool) -> dict[str, bool]:
    """Under the name in the recipe; in a script's arguments transformers sets both, and the old name is deprecated."""
    name, recipe = "activation_checkpointing", case.recipe
    newer = (case.argument(name) if recipe is None else recipe.get(f"train.{name}")) is not None
    return {f"train.{'activation_checkpointing' if newer else 'gradient_checkpointing'}": on}


def _less_memory(case: Case, costs: str) -> list[Remedy]:
    found = fewer_rows(case, costs)
    if case.settings("model").get("activation_checkpointing") is False:
        on = checkpointing_override(case, True)
        found.append(Remedy("checkpoint the activations", on, "the forward is computed twice"))
    return found


@rule(needs_steps=False)
def out_of_memory(case: Case) -> Verdict:
    """The exception that ended the run says so; the plan simulates every change that could fit."""
    account, memory = case.account, case.account.memory
    if account.ended != "error" or not _OUT_OF_MEMORY.search(account.error or ""):
        return None
    total = case.settings("device").get("memory_bytes")
    return finding(
        "the run ran out of memory",
        [
            ("what ended the run", account.error, "", "run.json: error"),
            ("optimizer steps before", account.steps.count, "count", "run.json: steps.count"),
            ("peak of the tensors", memory.device_peak_allocated_bytes, "bytes", _PEAK),
            ("memory of the device", total or None, "bytes", "spans.jsonl: settings.device"),
        ],
        [Remedy(f"let the plan simulate what would fit: {_PLAN}"), *_less_memory(case, "smaller kernels")],
        severity="critical",
    )


@rule(needs_steps=False)
def near_out_of_memory(case: Case) -> Verdict:
    """95% of what tensors may take of a CUDA device were reserved; on a CPU, 97% of the host's memory were taken.
    Batches of many sizes fill a healthy device with cache: so the tensors must have taken 85% themselves."""
    room, tensors = memory_room(case), case.account.memory.device_peak_allocated_bytes
    if room is None:
        return abstains("the device's memory, or its peak, is not known") if case.has_steps else None
    if room.share < (0.95 if case.on_cuda else 0.97):
        return None
    if case.on_cuda and tensors is not None and tensors < 0.85 * room.device_bytes:
        return None
    longest = case.account.sequences.longest_tokens
    simulate = Remedy(f"let the plan simulate what gives room: {_PLAN}")
    return finding(
        f"{share(room.share)} of the memory are taken: {size(room.idle_bytes)} are left for a longer batch",
        [
            ("memory taken at the peak", room.held_bytes, "bytes", room.source),
            ("memory of the device", room.device_bytes, "bytes", "spans.jsonl: settings.device.memory_bytes"),
            ("share", room.share, "share", room.source),
            ("longest document so far", longest, "tokens", "run.json: sequences.longest_tokens"),
        ],
        [*_less_memory(case, "more and smaller kernels"), simulate],
        case.cost(held_bytes=room.held_bytes),
        explains=["fragmentation"],
    )


def _retries(case: Case) -> int:
    """How often the allocator freed its cache after warm-up, over all processes of rank 0, each counted from 0."""
    counts = case.first.allocation_retries[case.first.steady]
    known = counts[np.isfinite(counts)]
    return int(np.maximum(np.diff(known), 0).sum())


def _retry_seconds(case: Case) -> float | None:
    first = case.first
    rose = np.diff(first.allocation_retries, prepend=first.allocation_retries[:1]) > 0
    rose &= first.steady
    others = first.step_seconds[first.steady & ~rose]
    if not rose.any() or not len(others):
        return None
    return float(np.maximum(first.step_seconds[rose] - np.median(others), 0).sum())


@rule()
def large_micro_batch(case: Case) -> Verdict:
    """The allocator retries after warm-up, and the device is nine tenths full: half of the rows would avoid it. With
    room left, torn memory (``fragmentation``) is their cause."""
    room, retries = memory_room(case), _retries(case)
    if not case.on_cuda or room is None or case.rows < 2 or not retries or room.share < 0.9:
        return None
    seconds = _retry_seconds(case)
    basis = "steps with a retry as long as those without; what smaller kernels cost is not counted"
    gain = None if seconds is None else case.gain(seconds, basis)
    return finding(
        f"micro-batches of {counted(case.rows, 'row')} fill the memory: {_FREED.format(counted(retries, 'time'))}",
        [
            ("retries after warm-up", retries, "count", "steps.jsonl: memory.allocation_retries"),
            ("memory taken at the peak", room.share, "share", room.source),
            ("rows of a micro-batch", case.rows, "count", "spans.jsonl: settings.arguments"),
        ],
        fewer_rows(case, "more and smaller kernels", gain),
        case.cost(seconds),
        confidence="likely",
        explains=["fragmentation", "near_out_of_memory"],
    )


@rule()
def fragmentation(case: Case) -> Verdict:
    """The allocator retries after warm-up, or reserves 30% and 1 GiB more at its peak than the tensors need. A retry
    frees the whole cache, which waits for the device, and every allocation after it asks the driver again."""
    memory = case.account.memory
    reserved, allocated = memory.device_peak_reserved_bytes, memory.device_peak_allocated_bytes
    if reserved is None or allocated is None:
        return None  # no CUDA device
    gap, retries = reserved - allocated, _retries(case)
    if not retries and gap < max(1 << 30, 0.3 * reserved):
        return None
    seconds = _retry_seconds(case) if retries else None
    evidence = [
        ("reserved at the peak", reserved, "bytes", "run.json: memory.device_peak_reserved_bytes"),
        ("tensors at the peak", allocated, "bytes", _PEAK),
        ("retries after warm-up", retries, "count", "steps.jsonl: memory.allocation_retries"),
        ("steps with a retry took longer by", seconds, "seconds", "steps.jsonl: wall_seconds"),
    ]
    remedies = [
        Remedy(
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True in the environment of the run",
            gain=None if seconds is None else case.gain(seconds, "steps with a retry as long as those without"),
        )
    ]
    known = case.argument("train_sampling_strategy") is not None
    if known and case.can_be_grouped and not case.argument("packing"):  # batches of many sizes tear the memory
        overrides = {"train.train_sampling_strategy": "group_by_length"}
        remedies.append(Remedy("put examples of like length into a batch", overrides, "another order of examples"))
    return finding(
        _FREED.format(counted(retries, "time")) if retries else f"{size(gap)} are reserved and unused",
        evidence,
        remedies,
        case.cost(seconds, gap),
        severity="warning" if retries else "info",
        confidence="measured" if retries else "likely",
    )


@rule(needs_steps=False)
def logits_spike(case: Case) -> Verdict:
    """Logits take three tenths of a CUDA device's peak or more; a warning where the memory is seven tenths full."""
    held, peak = category_bytes(case, "logits"), case.account.memory.device_peak_allocated_bytes
    room = memory_room(case)
    if held is None or peak is None or room is None or not case.on_cuda or held < 0.3 * peak:
        return None
    evidence = [
        ("logits", held, "bytes", "run.json: memory.categories.logits"),
        ("tensors at the peak", peak, "bytes", _PEAK),
        ("memory taken", room.share, "share", room.source),
        ("vocabulary", case.settings("model").get("vocabulary_size") or None, "count", "spans.jsonl: settings.model"),
    ]
    remedies = []
    is_sft = case.argument("loss_type") == "nll" and case.argument("packing") is not None
    if is_sft and not case.argument("label_smoothing_factor") and not case.argument("use_liger_kernel"):
        gain = Gain(None, None, held, None, "logits are computed and scored tile by tile, never held whole")
        costs = "the LM head is computed twice"
        remedies.append(Remedy("score the logits in tiles", {"train.loss_type": "chunked_nll"}, costs, gain))
    gain = Gain(None, None, held // 2, None, "half of the positions of a micro-batch, or fewer")
    remedies += fewer_rows(case, "smaller kernels", gain)
    return finding(
        f"the logits are {size(held)}, {share(held / peak)} of the tensors at the peak",
        evidence,
        remedies,
        case.cost(held_bytes=held),
        severity="warning" if room.share >= 0.7 else "info",
    )


@rule(needs_steps=False)
def optimizer_state(case: Case) -> Verdict:
    """Over a third of a CUDA device's tensors at the peak is optimizer state, and the memory is four fifths full."""
    held, peak = category_bytes(case, "optimizer_state"), case.account.memory.device_peak_allocated_bytes
    room, model = memory_room(case), case.settings("model")
    if held is None or peak is None or room is None or not case.on_cuda or held < 0.35 * peak or room.share < 0.8:
        return None
    remedies = []
    if case.argument("optim") in ("adamw_torch", "adamw_torch_fused"):  # moments in float32
        gain = Gain(None, None, held * 3 // 4, None, "moments of 1 byte in place of 4")
        costs = "the moments are rounded to 8 bits, block by block; its authors saw no loss of quality"
        remedies.append(Remedy("keep AdamW's moments in 8 bits", {"train.optim": "adamw_8bit"}, costs, gain))
    if model.get("trainable_parameters") == model.get("parameters"):
        remedies.append(Remedy("train an adapter in place of all weights", {"adapter.method": "lora"}, "learns less"))
    return finding(
        f"the optimizer's state is {size(held)}, {share(held / peak)} of the tensors at the peak",
        [
            ("optimizer state", held, "bytes", "run.json: memory.categories.optimizer_state"),
            ("tensors at the peak", peak, "bytes", _PEAK),
            ("memory taken", room.share, "share", room.source),
        ],
        remedies,
        case.cost(held_bytes=held),
        severity="info",
    )


@dataclass(frozen=True)
class _Growth:
    """Over the steps after warm-up, of ``the device`` or ``the process``, by so many ``known`` readings. Bytes: of
    steady growth per step, at the beginning, grown, and free at the end."""

    where: str
    known: int
    bytes_per_step: float | None
    first_bytes: float
    grown_bytes: float
    left_bytes: float | None
    source: str


@rule()
def memory_growth(case: Case) -> Verdict:
    """Memory grows steadily after warm-up, by 64 MiB and a twentieth or more: something is kept from every step. The C
    library alone can grow a process by half in ten seconds of small steps: a warning takes thirty readings, or memory
    that doubles."""
    known = [one for one in (_device_growth(case), _host_growth(case)) if one is not None and one.known >= 6]
    if not known:
        return abstains("memory was read fewer than six times after warm-up", "a longer run")
    growth = next((one for one in known if one.grown_bytes >= max(64 << 20, 0.05 * one.first_bytes)), None)
    if growth is None or growth.bytes_per_step is None:
        return None
    until = None if growth.left_bytes is None else int(growth.left_bytes / growth.bytes_per_step)
    to_do = int(case.facts.get("run", {}).get("max_steps") or 0) - case.account.steps.count
    fails = until is not None and until < to_do
    sure = growth.where == "the device" or growth.known >= 30 or growth.grown_bytes >= growth.first_bytes
    evidence = [
        ("growth per step", growth.bytes_per_step, "bytes", growth.source),
        ("growth after warm-up", growth.grown_bytes, "bytes", growth.source),
        ("memory at its beginning", growth.first_bytes, "bytes", growth.source),
        ("readings", growth.known, "count", growth.source),
        ("free at the end", growth.left_bytes, "bytes", growth.source),
        ("steps until nothing is free", until, "count", "free memory over growth per step"),
    ]
    title = f"the memory of {growth.where} grows by {size(round(growth.bytes_per_step))} with every step"
    if fails and until is not None:
        title += f", and is used up {counted(until, 'step')} further on"
    let_go = Remedy(
        "let go of what each step leaves behind: keep loss.item(), not the loss, and .detach().cpu() of what must be "
        "kept; put no tensor of a graph into a list or an attribute",
        gain=case.gain(0.0, "nothing is kept from a step", round(growth.grown_bytes)),
    )
    look = "to see which line keeps it: profile.memory (on a GPU) or profile.host_memory"
    return finding(
        title,
        evidence,
        [let_go, Remedy(look)],
        case.cost(held_bytes=round(growth.grown_bytes)),
        severity="critical" if fails and sure else "warning" if sure else "info",
        confidence="measured" if sure else "possible",
    )


def _device_growth(case: Case) -> _Growth | None:
    first, total = case.first, case.settings("device").get("memory_bytes")
    peaks = first.peak_allocated_bytes
    steps = np.arange(len(first), dtype=np.float64)
    kept = np.isfinite(peaks) & first.steady & (steps >= 0.1 * len(first))
    if not kept.any():
        return None
    left = None if not total else float(total) - float(peaks[kept][-1])
    return _growth("the device", steps[kept], peaks[kept], left, "steps.jsonl: memory.peak_allocated_bytes")


def _host_growth(case: Case) -> _Growth | None:
    if case.series is None:
        return None
    system = case.series.system
    read = [place for place in case.system_in_the_loop if system.rss_bytes.mean[place] is not None]
    if not read:
        return None
    resident = np.array([system.rss_bytes.mean[place] for place in read], dtype=np.float64)
    starts, walls = np.array(case.series.steps.started_at_seconds), np.array(case.series.steps.wall_seconds)
    done = np.concatenate([[0], np.cumsum(case.series.steps.steps)])  # when the first bucket began, and each ended
    read_at = [system.started_at_seconds[place] for place in read]
    steps: Column = np.interp(read_at, [starts[0], *(starts + walls)], done)
    kept = steps >= max(0.1 * steps[-1], float(np.argmax(case.first.steady)))
    if not kept.any():
        return None
    left = system.host_available_bytes.low[read[-1]]
    return _growth("the process", steps[kept], resident[kept], left, "system.jsonl: rss_bytes")


def _growth(where: str, steps: Column, held: Column, left: float | None, source: str) -> _Growth:
    slope = steady_growth(steps, held)
    grown = 0.0 if slope is None else slope * float(steps[-1] - steps[0])
    return _Growth(where, len(steps), slope, float(held[0]), grown, left, source)
