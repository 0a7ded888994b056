"""A snapshot of the CUDA allocator in, what its peak was made of out, by line of code and by module; no torch."""

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_efficient.records.profile import AllocationSite, MemorySnapshot, ModuleAllocations


def code_place(filename: str, line: int, name: str) -> str:
    """``transformers/models/llama/modeling_llama.py:180 forward``; a function without a file is its name."""
    path = filename.replace("\\", "/")
    if not path.endswith(".py"):
        return name
    short = path.split("/site-packages/")[-1] if "/site-packages/" in path else "/".join(path.split("/")[-3:])
    return f"{short}:{line} {name}"


@functools.lru_cache(maxsize=64)
def _classes(filename: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name; none of a file that cannot be read."""
    try:
        tree = ast.parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno, node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )


@dataclass(frozen=True)
class Live:
    """A block in use; ``frames``, innermost first, are None before history."""

    bytes: int
    frames: Sequence[dict[str, Any]] | None


def live_at_peak(segments: Iterable[dict[str, Any]], events: Sequence[dict[str, Any]]) -> list[Live]:
    """The blocks in use when most bytes were. The active blocks are the known end. Undone from there, an ``alloc``
    takes its block away, a ``free_completed`` brings it back. The peak is the largest sum on the way."""
    blocks = (block for segment in segments for block in segment["blocks"])
    live = {block["address"]: block for block in blocks if block["state"] != "inactive"}
    total = sum(_size(block) for block in live.values())
    peak, peak_at = total, len(events)
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        if event["action"] == "alloc":
            total -= event["size"]
        elif event["action"] == "free_completed":
            total += event["size"]
        if total > peak:
            peak, peak_at = total, place
    return _state(live, events, peak_at)


def _state(live: dict[int, dict[str, Any]], events: Sequence[dict[str, Any]], until: int) -> list[Live]:
    blocks = {address: Live(_size(block), block.get("frames") or None) for address, block in live.items()}
    for event in reversed(events[until:]):
        if event["action"] == "alloc":
            blocks.pop(event["addr"], None)
        elif event["action"] == "free_completed":
            blocks[event["addr"]] = Live(event["size"], None)
    made = {event["addr"]: event.get("frames", []) for event in events[:until] if event["action"] == "alloc"}
    return [replace(one, frames=made.get(at)) if one.frames is None else one for at, one in blocks.items()]


def _size(block: dict[str, Any]) -> int:
    return int(block.get("requested_size", block["size"]))


NO_MODULE = "outside the model's modules"


def _modules(live: Sequence[Live]) -> list[ModuleAllocations]:
    """Blocks by the module that asked for them, the largest sum first; none where of no block it is known: the
    class whose ``forward`` stands innermost in the stack, outside torch."""
    lines: dict[str, Counter[str]] = {}
    blocks: Counter[str] = Counter()
    for block in live:
        name = _class(block) or NO_MODULE
        lines.setdefault(name, Counter())[_place(block.frames)[0]] += block.bytes
        blocks[name] += 1
    if set(lines) <= {NO_MODULE}:
        return []
    found = []
    for name, held in lines.items():
        most = max(held, key=lambda line: (held[line], line))
        found.append(ModuleAllocations(name, held.total(), blocks[name], int(name != NO_MODULE), most))
    return sorted(found, key=lambda one: (-one.bytes, one.module))


def _class(block: Live) -> str:
    for frame in block.frames or ():
        filename = str(frame["filename"]).replace("\\", "/")
        if frame["name"] == "forward" and filename.endswith(".py") and "/torch/" not in filename:
            line = int(frame["line"])
            held = [(last - first, name) for first, last, name in _classes(filename) if first <= line <= last]
            if held:
                return f"class {min(held)[1]}"
    return ""


_MOST_SITES = 30
_MOST_MODULES = 60
_MOST_CALLERS = 4
_BEFORE = "allocated before the history begins"
_NO_PYTHON = "no Python frame: a backward's own thread, or C++"


def snapshot_record(
    snapshot: dict[str, Any], moment: str, device: int = 0, allocation_retries: int | None = None
) -> MemorySnapshot:
    """The figures of ``torch.cuda.memory._snapshot`` and what its peak was made of; retries are of ``memory_stats``."""
    segments = [segment for segment in snapshot["segments"] if segment.get("device", device) == device]
    traces = snapshot.get("device_traces") or []
    events = traces[device] if device < len(traces) else []
    free = [[block["size"] for block in segment["blocks"] if block["state"] == "inactive"] for segment in segments]
    in_use = [len(sizes) < len(segment["blocks"]) for sizes, segment in zip(free, segments, strict=True)]
    split = [size for sizes, used in zip(free, in_use, strict=True) if used for size in sizes]
    live = live_at_peak(segments, events)
    sites = _sites(live)
    modules = _modules(live)
    failed = next((event for event in reversed(events) if event["action"] == "oom"), None)
    return MemorySnapshot(
        moment=moment,
        reserved_bytes=sum(segment["total_size"] for segment in segments),
        allocated_bytes=sum(segment["active_size"] for segment in segments),
        inactive_split_bytes=sum(split),
        inactive_split_blocks=len(split),
        largest_free_bytes=max((size for sizes in free for size in sizes), default=0),
        peak_bytes=sum(block.bytes for block in live),
        sites=sites[:_MOST_SITES],
        other_sites_bytes=sum(site.bytes for site in sites[_MOST_SITES:]),
        allocation_retries=allocation_retries,
        failed_bytes=None if failed is None else failed["size"],
        device_free_bytes=None if failed is None else failed.get("device_free"),
        history_events=len(events),
        modules=modules[:_MOST_MODULES],
        other_modules_bytes=sum(one.bytes for one in modules[_MOST_MODULES:]),
    )


def _sites(live: Sequence[Live]) -> list[AllocationSite]:
    sizes: dict[tuple[str, ...], list[int]] = {}
    for block in live:
        sizes.setdefault(_place(block.frames), []).append(block.bytes)
    ordered = sorted(sizes.items(), key=lambda site: (-sum(site[1]), site[0]))
    return [AllocationSite(place[0], list(place[1:]), sum(held), len(held)) for place, held in ordered]


def _place(frames: Sequence[dict[str, Any]] | None) -> tuple[str, ...]:
    if frames is None:
        return (_BEFORE,)
    python = [frame for frame in frames if frame["filename"].endswith(".py")]
    own = [frame for frame in python if "/torch/" not in frame["filename"].replace("\\", "/")]
    shown = (own or python)[: 1 + _MOST_CALLERS]
    return tuple(code_place(f["filename"], f["line"], f["name"]) for f in shown) or (_NO_PYTHON,)
