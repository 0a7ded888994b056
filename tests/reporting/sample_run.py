"""Runs for the page's tests: records of a run on a GPU as a folder holds them, and accounts with every part filled."""

import dataclasses
import json
import math
from pathlib import Path

from hf_efficient.accounting.evaluations import SampleAnswers
from hf_efficient.records import amounts
from hf_efficient.records.account import PlanAccount, PlanFigure
from hf_efficient.reporting.run_data import RunData

GIB = 2**30
RESOLVED = """\
recipe:
  name: {name}
  description: a sample
  objective: sft
  model: {{id: meta-llama/Llama-3.1-8B-Instruct, dtype: bfloat16, revision: null}}
  adapter: {{method: lora, r: 16}}
  train: {{learning_rate: {rate}, max_length: 2048}}
provenance:
  name: /home/anna/recipes/llama/lora.yaml:2
  model.id: /home/anna/recipes/llama/lora.yaml:4
  model.dtype: /home/anna/recipes/bases/sft.yaml:9
  adapter.method: /home/anna/recipes/llama/lora.yaml:5
  adapter.r: /home/anna/recipes/llama/lora.yaml:6
  train.learning_rate: 'command line: train.learning_rate={rate}'
  train.max_length: /home/anna/recipes/llama/lora.yaml:9
environment:
  python: 3.11.7
  platform: Linux-6.8-x86_64
  cpu: AMD EPYC 9454
  usable_cores: 16
  memory_bytes: 137438953472
  gpus: [{{name: NVIDIA H200, memory_bytes: 150754820096, capability: '9.0'}}]
  driver: '570.86'
  cuda: '12.8'
  versions: {{hf_efficient: 0.1.0, torch: 2.13.0, transformers: 5.23.0, bitsandbytes: null}}
  git_commit: 0123456789abcdef
  git_dirty: true
"""


def write_records(
    folder: Path, *, steps: int = 120, name: str = "llama3.1-8b-lora", every: int = 30, speed: float = 1.0,
    rate: str = "2.0e-4", segment: int = 0, first: int = 1, number: int = 0, ended: str | None = "done",
    error: str | None = None,
) -> Path:  # fmt: skip
    """Write a process of a run that evaluates and saves every so many steps, and return the ``efficiency`` folder.
    Call again with another ``number`` for a resumption."""
    directory = folder / "efficiency"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "recipe.resolved.yaml").write_text(RESOLVED.format(name=json.dumps(name), rate=rate), encoding="utf-8")
    loop = 26.5
    with (directory / "steps.jsonl").open("a", encoding="utf-8") as file:
        for step in range(first, first + steps):
            record = _step(step, first, loop, speed, every, segment)
            loop = record["started_at_seconds"] + record["wall_seconds"]
            file.write(json.dumps(record) + "\n")
    at = 14.0 + loop
    lines = [
        {"kind": "process", "schema_version": 1, "rank": 0, "pid": 1, "way": "recipe"}
        | {"process_start_from": "kernel", "began_at_seconds": 0.0},
        _span(0.0, imports=6.2),
        _span(6.2, model_load=5.1),
        _span(11.3, data_preparation=2.4, trainer_setup=0.2),
        {"kind": "train", "segment": segment, "at_seconds": 14.0},
        _span(14.0, trainer_setup=0.4, evaluation=26.0),
        _span(at, checkpointing=1.9),
    ]
    if ended is not None:
        memory = {"peak_rss_bytes": 7 * GIB, "device_peak_allocated_bytes": 41 * GIB}
        memory |= {"device_peak_reserved_bytes": 46 * GIB, "device_allocation_retries": 0}
        lines.append({"kind": "end", "ended": ended, "error": error, "at_seconds": at + 2.1, "memory": memory})
    else:
        phases = {"forward": 0.1, "evaluation": 1.4}
        alive = {"kind": "alive", "at_seconds": at + 1.5, "started_at_seconds": at, "open_phase": "evaluation"}
        lines[-1] = {**alive, "phase_seconds": phases, "memory": {"peak_rss_bytes": 7 * GIB}}
    _append(directory / "spans.jsonl", [{**line, "process": number} for line in lines])
    _append(directory / "system.jsonl", [_reading(second, at, number) for second in range(1, int(at) + 2)])
    return directory


def _append(path: Path, lines: list[dict[str, object]]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _span(start: float, **phases: float) -> dict[str, object]:
    return {"kind": "span", "started_at_seconds": start, "wall_seconds": sum(phases.values()), "phase_seconds": phases}


def _wave(step: int, period: float) -> float:
    return math.sin(step * 2 * math.pi / period)


def _step(step: int, first: int, start: float, speed: float, every: int, segment: int) -> dict[str, object]:
    forward = (0.30 + 0.02 * _wave(step, 7)) / speed
    phases = {
        "data_wait": 0.015 + (0.35 if step % 37 == 0 else 0.0), "host_to_device": 0.003, "forward": forward,
        "backward": 1.9 * forward, "optimizer": 0.035, "logging": 0.004 if step % 5 == 0 else 0.0002,
    }  # fmt: skip
    if step == first:
        phases["forward"] += 1.6
    if step % every == 0:
        phases |= {"evaluation": 11.5, "checkpointing": 1.7}
    wall = sum(phases.values()) + 0.004
    real = 14200 + int(900 * _wave(step, 11))
    record: dict[str, object] = {
        "schema_version": 1, "segment": segment, "rank": 0, "step": step, "epoch": step / 400,
        "wall_seconds": round(wall, 6), "started_at_seconds": round(start, 6),
        "phase_seconds": {name: round(value, 6) for name, value in phases.items()}, "micro_batches": 4,
        "tokens": {"processed": 16384, "non_padding": real, "target": int(0.42 * real)},
        "memory": {
            "peak_allocated_bytes": int((38 + 2 * _wave(step, 9)) * GIB), "peak_reserved_bytes": 46 * GIB,
            "phase_peak_allocated_bytes": {"forward": 38 * GIB, "backward": 41 * GIB}, "allocation_retries": 0,
        },
        "loss": None,
    }  # fmt: skip
    if step % 5 == 0:
        record["loss"] = round(1.1 + 1.4 * math.exp(-step / 45) + 0.05 * _wave(step, 13), 4)
        record["learning_rate"] = 2e-4 * (1 - step / 1000)
        record["grad_norm"] = round(0.6 + 0.3 * abs(_wave(step, 17)), 4)
    return record


def _reading(second: int, end: float, number: int) -> dict[str, object]:
    loaded = second > 14
    allocated = (17 + (21 + 2 * _wave(second, 9) if second > 41 else 0)) * GIB if loaded else 0
    return {
        "schema_version": 1, "process": number, "at_seconds": float(second),
        "rss_bytes": int(min(second / 14, 1) * 6.4 * GIB) + GIB // 2, "device_allocated_bytes": int(allocated),
        "device_reserved_bytes": int(allocated * 1.12), "joules": {"GPU 0": 400.0 * second},
        "watts": {"GPU 0": 540 + 90 * _wave(second, 21) if second > 41 else 95.0, "CPU package 0": 120.0},
        "host_available_bytes": 110 * GIB - int(min(second / 14, 1) * 6.4 * GIB), **_loads(second),
    }  # fmt: skip


def _loads(second: int) -> dict[str, object]:
    """Of a machine of 16 cores, of which others take some for a while, and whose GPU is hot at the end."""
    trains = second > 41
    others = 9.5 if 90 <= second < 130 else 0.4
    host = {
        "process_cores": 1.1 + 0.1 * _wave(second, 5), "children_cores": 2.5 if trains else 0.0,
        "other_cores": others, "busy_cores": 4.0 + others, "main_thread_core_wait": 0.12 if others > 1 else 0.0,
        "load_1_minute": 3.0 + others / 2, "disk_read_bytes_per_second": 2.1e8 if not trains else 4e6,
        "disk_write_bytes_per_second": 1.4e8 if second % 31 < 2 else 1e5,
        "read_bytes_per_second": 2e8 if not trains else 3.5e6,
        "write_bytes_per_second": 1.3e8 if second % 31 < 2 else 0.0, "disk_latency_milliseconds": 0.8,
        "network_received_bytes_per_second": 2.5e6 * (1 + _wave(second, 17)), "network_sent_bytes_per_second": 4e5,
    }  # fmt: skip
    hot = second > 170
    gpu = {
        "utilization_percent": 96 if trains else 3, "memory_utilization_percent": 41 if trains else 1,
        "memory_used_bytes": 48 * GIB, "temperature_celsius": min(38 + second / 4, 87),
        "sm_clock_mhz": 1500 if hot else 1980, "memory_clock_mhz": 2619,
    }  # fmt: skip
    return {"host": host, "gpus": {"0": gpu}, **({"throttled": {"0": ["thermal"]}} if hot else {})}


def full(run: RunData) -> RunData:
    """The same run with every part of its account filled."""
    account = run.account
    wall = account.time.wall_seconds
    by_phase = {**account.time.phase_seconds, "unattributed": account.time.unattributed_seconds}
    joules = {name: value * (620 if name in ("forward", "backward") else 210) for name, value in by_phase.items()}
    steps = account.steps.count
    kinds = [("weights", 15.0), ("adapter", 0.08), ("gradients", 0.08), ("optimizer_state", 0.16)]
    categories = [amounts.MemoryCategory(name, int(size * GIB), "exact") for name, size in kinds]
    categories += [
        amounts.MemoryCategory("activations", int(18.5 * GIB), "measured", "one forward of 4 x 2,048 tokens"),
        amounts.MemoryCategory("logits", 4 * GIB, "measured", "one forward of 4 x 2,048 tokens"),
        amounts.MemoryCategory("rest", int(3.2 * GIB), "derived", "of the peak"),
    ]
    planned = [(kind.name, kind.bytes, kind.bytes) for kind in categories[:4]]
    planned += [("peak_allocated", 42 * GIB, 41 * GIB), ("activations", 19 * GIB, int(18.5 * GIB))]
    spent = sum(joules.values())
    cost = wall / 3600 * 3.99
    losses = {step: round(1.2 + 1.3 * math.exp(-step / 50), 3) for step in range(30, steps + 1, 30)}
    memory = dataclasses.replace(
        account.memory, phase_peak_allocated_bytes={"forward": 38 * GIB, "backward": 41 * GIB}, categories=categories
    )
    full_account = dataclasses.replace(
        account, memory=memory,
        sequences=amounts.SequenceAccount(
            rows=32 * steps, samples=38 * steps, mean_tokens=371.4, shortest_tokens=12, longest_tokens=2048,
            length_buckets={"64": 310, "128": 1105, "256": 1640, "512": 900, "1024": 420, "2048": 185},
            samples_per_second=41.2, fill_rate=0.984,
        ),
        work=amounts.WorkAccount(
            model_flops=int(6.1e17), hardware_flops=int(7.4e17), mfu=0.412, hfu=0.503, peak_flops_per_second=9.89e14,
            peak_source="NVIDIA data sheet, 2025-01", dtype="bfloat16",
        ),
        energy=amounts.EnergyAccount(
            joules=spent, estimated=True, phase_joules=joules, co2e_grams=spent / 3.6e6 * 380, grid_grams_per_kwh=380.0,
            grid_source="Ember, Germany, 2024", parts=[
                amounts.EnergyPart("GPU 0", spent * 0.8, "nvml", False, wall, 0.0),
                amounts.EnergyPart("CPU", spent * 0.2, "estimate", True, wall, 0.0, "0.7 x 280 W (TDP)"),
            ],
        ),
        money=amounts.MoneyAccount(
            cost_usd=cost, usd_per_million_non_padding_tokens=cost / ((account.tokens.non_padding or 1) / 1e6),
            phase_usd={name: value / 3600 * 3.99 for name, value in by_phase.items()}, price_usd_per_hour=3.99,
            price_source="list price of one H200, 2025-06", estimated=True,
            budget=amounts.BudgetAccount(usd=40.0, hours=2.0),
        ),
        plan=PlanAccount("NVIDIA H200", steps, [
            *(PlanFigure(f"{name}_bytes", one, other, one / other - 1) for name, one, other in planned),
            PlanFigure("step_seconds", 1.31, 1.44, 1.31 / 1.44 - 1),
            PlanFigure("training_energy_joules", 2.1e5, None, None, "a reason that is rather long, to be wrapped"),
        ]),
        evaluations=[
            amounts.Evaluation(0, {"loss": 2.613, "perplexity": 13.64, "token_accuracy": 0.471, "runtime": 25.9}, 26.0),
            *(amounts.Evaluation(step, {"loss": loss, "token_accuracy": 0.61}, 11.5) for step, loss in losses.items()),
        ],
    )  # fmt: skip
    asked = SampleAnswers(
        "Write the docstring of:\n\ndef clamp(value, low, high)", "Limit value to the range from low to high.",
        {0: "def clamp(value, low, high):\n    return value", steps: "Return value limited to [low, high]."},
    )  # fmt: skip
    return dataclasses.replace(run, account=full_account, answers=[asked])
