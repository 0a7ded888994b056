"""Lines of hand-made records."""

import json

import msgspec

from hf_efficient.records.steps import SequenceCounts, StepLoader, StepMemory, StepRecord, StepWork, TokenCounts


def lines(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def process(number=0, began=0.0, way="recipe"):
    told = {"way": way, "process_start_from": "kernel", "began_at_seconds": began}
    return {"kind": "process", "schema_version": 1, "rank": 0, "pid": 7, "process": number, **told}


def span(start, number=0, **phases):
    told = {"started_at_seconds": start, "wall_seconds": sum(phases.values()), "phase_seconds": phases}
    return {"kind": "span", "process": number, **told}


def train(segment, at, number=0):
    return {"kind": "train", "segment": segment, "at_seconds": at, "process": number}


def train_end(segment, at, number=0, error=None):
    told = {"ended": "done" if error is None else "error", "error": error}
    return {"kind": "train_end", "segment": segment, "at_seconds": at, "process": number, **told}


def end(at, number=0, ended="done", error=None, **memory):
    told = {"ended": ended, "error": error, "memory": {"peak_rss_bytes": 1000, **memory}}
    return {"kind": "end", "at_seconds": at, "process": number, **told}


def alive(at, start, number=0, phase=None, **phases):
    told = {"open_phase": phase, "phase_seconds": phases, "memory": {"peak_rss_bytes": 900}}
    return {"kind": "alive", "process": number, "at_seconds": at, "started_at_seconds": start, **told}


def step(number, start, wall, segment=0, rank=0, tokens=(10, 8, 4), **phases):
    record = StepRecord(segment, rank, number, None, wall, start, phases, 1, TokenCounts(*tokens))
    return record.to_json()


def full_step(number, start, wall, **more):
    phases = {"forward": 0.5, "backward": 0.25}
    record = StepRecord(
        segment=0, rank=0, step=number, epoch=None, wall_seconds=wall, started_at_seconds=start, phase_seconds=phases,
        micro_batches=1, tokens=TokenCounts(10, 8, 4), sequences=SequenceCounts(2, 3, 1, 4, {"4": 3}),
        work=StepWork(100, 120), memory=StepMemory(1000 * number, 2000), device_seconds={"forward": 0.125},
        waited_seconds={"evaluation": 0.0625},
        loader=StepLoader(batches=1, wait_seconds=0.0625, rows=2, bytes=80, fetched=1, fetch_seconds=0.03125),
    )  # fmt: skip
    return msgspec.structs.replace(record, **more).to_json()


def reading(number, at, **what):
    return {"schema_version": 1, "process": number, "at_seconds": at, **what}


def sample(at, number=0, meters=None, **readings):
    held = {"schema_version": 1, "process": number, "at_seconds": at, **readings}
    return held if meters is None else {**held, "meters": meters}


def meter(source="nvml", unit="joules", name="GPU 0", machine="m", note="", **more):
    return {"id": name, "machine": machine, "source": source, "unit": unit, "note": note, **more}


def facts(number=0, **topics):
    return {"kind": "facts", "process": number, "facts": topics}


def price(usd, source="by hand", estimated=False, **more):
    return {"price_usd_per_hour": usd, "source": source, "estimated": estimated, **more}
