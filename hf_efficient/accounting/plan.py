"""What came before and beside a run: its plan against what it came to, its preflight check, its profilers."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hf_efficient.accounting.run_records import ProcessSpans
from hf_efficient.records import profile
from hf_efficient.records.account import PlanAccount, PlanFigure, RunAccount
from hf_efficient.records.amounts import MemoryAccount
from hf_efficient.records.events import MemoryFacts
from hf_efficient.records.plan import PlannedRun
from hf_efficient.records.steps import COARSE_PHASES, STEP_PHASES
from hf_efficient.run_dir.json_file import tables
from hf_efficient.text import counted

_EXACT = ("weights", "adapter", "gradients", "optimizer_state")
_OF_A_MICRO_BATCH = ("activations", "logits")
_LOOP = frozenset((*STEP_PHASES, *COARSE_PHASES)) - {"evaluation", "checkpointing"}


def plan_account(processes: Sequence[ProcessSpans], account: RunAccount) -> PlanAccount | None:
    """Predicted and observed, figure by figure, of the last process of rank 0 that was planned; None where none was."""
    for process in reversed(processes):
        planned = process.stated("plan", PlannedRun)
        if planned is None:
            continue
        counted = process.stated("memory", MemoryFacts) or MemoryFacts()
        seconds, steps, why = account.time.training_seconds, account.steps.count, planned.reasons.get("time", "")
        rate = account.tokens.processed_tokens_per_second
        figures = [
            *_bytes(planned, account.memory, counted.positions),
            _figure("tokens_per_second", planned.tokens_per_second, rate, why),
            _figure("step_seconds", planned.step_seconds, seconds / steps if steps else None, why),
            _whole(planned, "training_seconds", seconds, steps, why),
            _cost(planned, account),
            _energy(planned, account),
        ]
        return PlanAccount(device=planned.device, steps=planned.steps, figures=figures)
    return None


def _bytes(planned: PlannedRun, memory: MemoryAccount, positions: int | None) -> Iterator[PlanFigure]:
    """Of activations and logits the plan is of the largest micro-batch, the count of one that came."""
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        predicted, held = getattr(planned, name), getattr(memory, f"device_{name}")
        if predicted is not None or held is not None:
            yield _figure(name, predicted, held)
    observed = {one.name: one.bytes for one in memory.categories}
    for name in _EXACT:
        if planned.categories.get(name) or observed.get(name):
            note = "" if name in observed else "it was not counted"
            yield _figure(f"{name}_bytes", planned.categories.get(name, 0), observed.get(name), note)
    for name in _OF_A_MICRO_BATCH:
        predicted, held = planned.categories.get(name), observed.get(name)
        if predicted is None:
            continue
        note = "it was not counted" if held is None else ""
        if held and positions and positions != planned.positions:
            predicted = round(predicted * positions / planned.positions)
            note = f"planned for a micro-batch of {planned.positions:,} positions, "
            note += f"scaled to the {positions:,} of the counted"
        yield _figure(f"{name}_bytes", predicted, held, note)


def _cost(planned: PlannedRun, account: RunAccount) -> PlanFigure:
    money, time = account.money, account.time
    spent, why = None, planned.reasons.get("cost") or planned.reasons.get("time", "")
    if money.lowest_price_usd_per_hour is not None:
        why = why or "the processes of the run had different prices"
    elif money.cost_usd is not None and time.wall_seconds > 0:
        spent = money.cost_usd * time.training_seconds / time.wall_seconds
    return _whole(planned, "training_cost_usd", spent, account.steps.count, why)


def _energy(planned: PlannedRun, account: RunAccount) -> PlanFigure:
    """Of the training loop: that of the GPUs, by the loop's share of what all meters read."""
    energy = account.energy
    used, why = None, planned.reasons.get("energy") or planned.reasons.get("time", "")
    gpus = [part.joules for part in energy.parts if part.source == "nvml"]
    if gpus and energy.joules and energy.phase_joules is not None:
        loop = math.fsum(joules for name, joules in energy.phase_joules.items() if name in _LOOP)
        used = math.fsum(gpus) * loop / energy.joules
    return _whole(planned, "training_energy_joules", used, account.steps.count, why)


def _whole(planned: PlannedRun, name: str, observed: float | None, steps: int, why: str) -> PlanFigure:
    if steps == planned.steps:
        return _figure(name, getattr(planned, name), observed, why)
    note = f"{counted(steps, 'step')} done, {planned.steps:,} planned"
    return _figure(name, getattr(planned, name), None, why or note)


def _figure(name: str, predicted: float | None, observed: float | None, note: str = "") -> PlanFigure:
    error = predicted / observed - 1 if predicted is not None and observed else None
    return PlanFigure(name, predicted, observed, error, note)


def profile_account(processes: Sequence[ProcessSpans], directory: Path) -> profile.ProfileAccount | None:
    """Of the last process of rank 0 that had instruments, with their tables; None where none had."""
    stated = next((one.facts["profile"] for one in reversed(processes) if "profile" in one.facts), {})
    instruments = [found for name, facts in stated.items() if (found := _instrument(name, facts)) is not None]
    if not instruments:
        return None
    files = [file for instrument in instruments for file in instrument.files]
    return profile.ProfileAccount(
        instruments,
        operators=next(iter(tables(directory, files, "operators", profile.OperatorTable)), None),
        memory=tables(directory, files, "memory", profile.MemorySnapshot),
        functions=tables(directory, files, "python", profile.FunctionTable),
        lines=next(iter(tables(directory, files, "lines", profile.LineTable)), None),
        host_memory=next(iter(tables(directory, files, "host_memory", profile.HostMemoryTable)), None),
    )


def _instrument(name: str, facts: Any) -> profile.InstrumentAccount | None:
    try:
        return msgspec.convert({**facts, "name": name}, profile.InstrumentAccount)
    except (TypeError, msgspec.ValidationError):  # another topic's facts, or those of another version
        return None
