"""Runs, variants and traces made by hand for the rules."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hf_efficient.diagnosis.case import Case, read_case
from hf_efficient.records import isolation as variants
from hf_efficient.records.findings import Finding, Gain, Remedy
from hf_efficient.records.trace import TraceBreakdown
from hf_efficient.trace.breakdown import trace_breakdown
from tests.trace.made_trace import HEAD, call, on_device, write_trace

GIB = 1 << 30
MATMUL = "ampere_bf16_s16816gemm_bf16_128x128"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)"
_PROCESS = {"process_start_from": "kernel", "began_at_seconds": 0.0}


def step(number: int = 1, *, rows: int = 4, processed: int = 400, non_padding: int | None = None, **more: Any) -> dict:
    """A step record of one micro-batch; ``phases`` are its seconds, and ``more`` goes in as it is."""
    phases = more.pop("phases", {"forward": 0.4, "backward": 0.5, "optimizer": 0.1})
    real = processed if non_padding is None else non_padding
    lengths = more.pop("length_buckets", {"100": rows})
    return {
        "schema_version": 1, "segment": 0, "rank": 0, "step": number, "epoch": None,
        "wall_seconds": sum(phases.values()), "started_at_seconds": float(number), "phase_seconds": phases,
        "micro_batches": 1, "tokens": {"processed": processed, "non_padding": real, "target": real},
        "sequences": {"rows": rows, "documents": rows, "shortest": 1, "longest": 100, "length_buckets": lengths},
        "loss": None, **more,
    }  # fmt: skip


def loaded_step(number: int, compute: float = 1.0, **loader: Any) -> dict:
    """A step of so much computing beside what its loader says; the whole of its waits is data wait."""
    told = {"batches": 1, "fetched": 1, "wait_seconds": 0.0, **loader}
    waits = told["wait_seconds"] + told.get("start_seconds", 0.0) + told.get("end_seconds", 0.0)
    return step(number, phases={"data_wait": waits, "forward": compute}, loader=told)


def loaded_steps(count: int = 23, compute: float = 1.0, **loader: Any) -> list[dict]:
    """Three to warm up, and 20 more by default."""
    return [loaded_step(number, compute, **loader) for number in range(1, count + 1)]


def step_memory(allocated: int, reserved: int, retries: int = 0) -> dict[str, int]:
    return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved, "allocation_retries": retries}


def settings(**parts: Mapping[str, Any]) -> dict[str, Any]:
    """The topic ``settings``."""
    plain = {"arguments": {}, "model": {}, "optimizer": {}, "device": {"type": "cpu"}, "host": {}, "peaks": {}}
    return {**plain, **parts}


def loaded_facts(workers: int = 0, cores: int = 4, threads: int = 1, **loader: Any) -> dict[str, Any]:
    return {
        "settings": settings(host={"cores": cores, "torch_threads": threads}),
        "loader": {"workers": workers, **loader},
    }


def memory(positions: int | None = None, device: str = "cpu", **sizes: int) -> dict[str, Any]:
    """The topic ``memory``: bytes by category, of a micro-batch of so many positions."""
    categories = [{"name": name, "bytes": held, "how": "exact", "note": ""} for name, held in sizes.items()]
    return {"device": device, "categories": categories, "missing": [], "positions": positions}


def case_in(
    folder: Path,
    steps: Sequence[Mapping[str, Any]] = (),
    *,
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    notes: Sequence[Mapping[str, Any]] = (),
    other_ranks: Mapping[int, Sequence[Mapping[str, Any]]] | None = None,
    system: Sequence[Mapping[str, Any]] = (),
    recipe: str = "",
    price_usd_per_hour: float | None = None,
    memory: Mapping[str, int] | None = None,
) -> Case:
    """A run that trained once and ended well, written as its files and read as they are.

    ``notes`` are lines of spans; ``system`` those of ``system.jsonl``; ``memory`` the peaks that it told at its end.
    """
    ends = 2.0 + sum(one["wall_seconds"] for one in steps)
    stated = {"settings": settings(), **(facts or {})}
    if price_usd_per_hour is not None:
        stated["price"] = {"price_usd_per_hour": price_usd_per_hour, "source": "the recipe", "estimated": False}
    told = {"peak_rss_bytes": 1000, **(memory or {})}
    spans: list[Mapping[str, Any]] = [
        {"kind": "process", "schema_version": 1, "rank": 0, "pid": 7, "way": "trainer", **_PROCESS},
        {"kind": "train", "segment": 0, "at_seconds": 1.0},
        *({"kind": "facts", "facts": {topic: held}} for topic, held in stated.items()),
        *notes,
        {"kind": "train_end", "segment": 0, "at_seconds": ends, "ended": "done", "error": None},
        {"kind": "end", "ended": "done", "error": None, "at_seconds": ends, "memory": told},
    ]
    _write(folder / "spans.jsonl", [{**line, "process": 0} for line in spans])
    _write(folder / "steps.jsonl", steps)
    for rank, held in (other_ranks or {}).items():
        _write(folder / f"steps.rank{rank}.jsonl", [{**one, "rank": rank} for one in held])
    if system:
        _write(folder / "system.jsonl", [{"schema_version": 1, "process": 0, **line} for line in system])
    if recipe:
        (folder / "recipe.resolved.yaml").write_text(recipe, encoding="utf-8")
    return read_case(folder)


def _write(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def part(name: str, seconds: float | None, note: str = "") -> variants.StepPart:
    """A part of a step without a spread."""
    return variants.StepPart(name, seconds, None, None, 1, "a less b", note)


def isolation(*parts: variants.StepPart, schedule: dict[str, Any] | None = None, **changes: Any) -> variants.Isolation:
    """A step of one second; 1000 of them at 3.6 dollars an hour; a micro-batch without a fixed cost."""
    plain = variants.IsolationSchedule(1000, None, None, None, 2, 4, 1, 0, 4.0, 1, "cuda")
    held: dict[str, Any] = {
        "schema_version": 1, "hf_efficient_version": "1", "recipe": "r", "steps": 12, "warm_up": 3,
        "schedule": dataclasses.replace(plain, **(schedule or {})), "variants": [], "step_seconds": 1.0,
        "parts": list(parts), "unexplained_seconds": 0.0, "tokens_per_second": 400.0,
        "pauses": variants.PauseTimes(None, None, None),
        "loader": variants.LoaderAlone(0.5, None, 0.5, 0.05), "tokenisation": None,
        "micro_batch": variants.MicroBatchLine(0.0, 0.002, 0.2, 100.0, 30, ["as_is", "micro_batch_doubled"]),
        "forward_without_graph_seconds": None, "price_usd_per_hour": 3.6, "notes": [],
    }  # fmt: skip
    return variants.Isolation(**{**held, **changes})


def kernels(*found: tuple[str, float, float, float], first: int = 1, stream: int = 7) -> list[dict[str, Any]]:
    """Kernels (name, microseconds of start and end, when its call began) and the calls of 1 µs that launched them."""
    events = []
    for number, (name, start, end, called) in enumerate(found, first):
        events.append(call("cudaLaunchKernel", called, called + 1, number))
        events.append(on_device("kernel", name, start, end, number, stream=stream))
    return events


def broken_down(folder: Path, events: Sequence[dict[str, Any]], name: str = "NVIDIA Test GPU") -> TraceBreakdown:
    """Of a trace that holds these events, on a device of this name."""
    head = {**HEAD, "deviceProperties": [{"id": 0, "name": name}]}
    return trace_breakdown(write_trace(folder / "alone.json", list(events), head))


def leave_trace(folder: Path, events: Sequence[dict[str, Any]]) -> None:
    """Where the profiler of a run puts it."""
    (folder / "profile").mkdir(parents=True)
    write_trace(folder / "profile" / "trace.rank0.cycle0.pt.trace.json", list(events))


def judged(found: Finding, **expected: Any) -> None:
    """What the finding says of itself, its cost, and its first remedy with its gain, is as expected."""
    remedy = found.remedies[0] if found.remedies else Remedy("")
    gain = remedy.gain or Gain(None, None, None, None, "")
    said = {name: getattr(found, name) for name in ("rule", "severity", "confidence", "explains")}
    said |= {"cost": found.cost.seconds, "cost_bytes": found.cost.bytes, "cost_usd": found.cost.usd}
    said |= {"overrides": remedy.overrides, "but": remedy.costs, "share": gain.share, "saves": gain.seconds}
    said |= {"frees": gain.bytes, "saves_usd": gain.usd}
    like = {name: pytest.approx(value) if isinstance(value, float | int) else value for name, value in expected.items()}
    assert {name: said[name] for name in expected} == like
