"""What was planned of a run beside what it came to.

What was proven before a run, from its facts.

What the instruments of a run found and cost, from its facts and the tables beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.records.account import PlanAccount, PlanFigure, Preflight, StepTimes, TimeAccount
from hf_efficient.records.amounts import EnergyAccount, MemoryAccount, MoneyAccount, TokenAccount
from hf_efficient.records.plan import PlannedRun
from hf_efficient.records.profile import (
    FunctionTable,
    HostMemoryTable,
    InstrumentAccount,
    LineTable,
    MemorySnapshot,
    OperatorTable,
    ProfileAccount,
)
from hf_efficient.records.steps import COARSE_PHASES, STEP_PHASES
from hf_efficient.run_dir.json_file import tables

_EXACT = ("weights", "adapter", "gradients", "optimizer_state")
_OF_A_MICRO_BATCH = ("activations", "logits")
_LOOP = frozenset((*STEP_PHASES, *COARSE_PHASES)) - {"evaluation", "checkpointing"}


def plan_account(
    processes: Sequence[ProcessSpans],
    time: TimeAccount,
    steps: StepTimes,
    tokens: TokenAccount,
    memory: MemoryAccount,
    energy: EnergyAccount,
    money: MoneyAccount,
) -> PlanAccount | None:
    """Predicted and observed, figure by figure, of the last process that was planned; None where none was.

    Args:
        processes: of rank 0.
        time, steps, tokens, memory, energy, money: of the run.
    """
    for process in reversed(processes):
        planned = _planned(process.facts.get("plan", {}))
        if planned is None:
            continue
        figures = [
            *_peaks(planned, memory),
            *_exact(planned, memory),
            *_of_a_micro_batch(planned, memory, process.facts.get("memory", {}).get("positions")),
            *_times(planned, time, steps, tokens),
            _cost(planned, time, steps, money),
            _energy(planned, steps, energy),
        ]
        return PlanAccount(device=planned.device, steps=planned.steps, figures=figures)
    return None


def _planned(facts: Mapping[str, Any]) -> PlannedRun | None:
    """None of a process that was not planned, and of one that says other things than are known here."""
    held = {one.name: facts[one.name] for one in fields(PlannedRun) if one.name in facts}
    try:
        return PlannedRun(**held)
    except TypeError:
        return None


def _peaks(planned: PlannedRun, memory: MemoryAccount) -> Iterator[PlanFigure]:
    for name, predicted, observed in (
        ("peak_allocated_bytes", planned.peak_allocated_bytes, memory.device_peak_allocated_bytes),
        ("peak_reserved_bytes", planned.peak_reserved_bytes, memory.device_peak_reserved_bytes),
    ):
        if predicted is not None or observed is not None:
            yield _figure(name, predicted, observed)


def _exact(planned: PlannedRun, memory: MemoryAccount) -> Iterator[PlanFigure]:
    observed = {one.name: one.bytes for one in memory.categories}
    for name in _EXACT:
        if planned.categories.get(name) or observed.get(name):
            note = "" if name in observed else "it was not counted"
            yield _figure(f"{name}_bytes", planned.categories.get(name, 0), observed.get(name), note)


def _of_a_micro_batch(planned: PlannedRun, memory: MemoryAccount, positions: int | None) -> Iterator[PlanFigure]:
    """Activations and logits: the plan is of the largest micro-batch, the count of one that came."""
    observed = {one.name: one.bytes for one in memory.categories}
    for name in _OF_A_MICRO_BATCH:
        predicted, held = planned.categories.get(name), observed.get(name)
        if predicted is None:
            continue
        if not held or not positions or positions == planned.positions:
            note = "it was not counted" if held is None else ""
            yield _figure(f"{name}_bytes", predicted, held, note)
            continue
        each = _error(predicted / planned.positions, held / positions)
        note = f"planned for a micro-batch of {planned.positions:,} positions, counted in one of {positions:,}"
        yield PlanFigure(f"{name}_bytes", predicted, held, each, f"{note}: the error is that per position")


def _times(planned: PlannedRun, time: TimeAccount, steps: StepTimes, tokens: TokenAccount) -> Iterator[PlanFigure]:
    why = planned.reasons.get("time", "")
    mean = time.training_seconds / steps.count if steps.count else None
    yield _figure("tokens_per_second", planned.tokens_per_second, tokens.processed_tokens_per_second, why)
    yield _figure("step_seconds", planned.step_seconds, mean, why)
    yield _whole(planned, "training_seconds", time.training_seconds, steps, why)


def _cost(planned: PlannedRun, time: TimeAccount, steps: StepTimes, money: MoneyAccount) -> PlanFigure:
    """Of the training loop, at the one price of the run."""
    spent, why = None, planned.reasons.get("cost") or planned.reasons.get("time", "")
    if money.lowest_price_usd_per_hour is not None:
        why = why or "the processes of the run had different prices"
    elif money.cost_usd is not None and time.wall_seconds > 0:
        spent = money.cost_usd * time.training_seconds / time.wall_seconds
    return _whole(planned, "training_cost_usd", spent, steps, why)


def _energy(planned: PlannedRun, steps: StepTimes, energy: EnergyAccount) -> PlanFigure:
    """Of the training loop: that of the GPUs, by the loop's share of what all meters told."""
    used, why = None, planned.reasons.get("energy") or planned.reasons.get("time", "")
    gpus = [part.joules for part in energy.parts if part.source == "nvml"]
    if gpus and energy.joules and energy.phase_joules is not None:
        loop = math.fsum(joules for name, joules in energy.phase_joules.items() if name in _LOOP)
        used = math.fsum(gpus) * loop / energy.joules
    return _whole(planned, "training_energy_joules", used, steps, why)


def _whole(planned: PlannedRun, name: str, observed: float | None, steps: StepTimes, why: str) -> PlanFigure:
    """A figure of the whole run, which one that has done other steps does not tell."""
    if steps.count == planned.steps:
        return _figure(name, getattr(planned, name), observed, why)
    note = f"{steps.count:,} steps were done, {planned.steps:,} were planned"
    return _figure(name, getattr(planned, name), None, why or note)


def _figure(name: str, predicted: float | None, observed: float | None, note: str = "") -> PlanFigure:
    return PlanFigure(name, predicted, observed, _error(predicted, observed), note)


def _error(predicted: float | None, observed: float | None) -> float | None:
    return predicted / observed - 1 if predicted is not None and observed else None


def preflight_account(processes: Sequence[ProcessSpans]) -> Preflight | None:
    """Of the last process that was proven; None where none was.

    Args:
        processes: of rank 0.
    """
    facts = next((one.facts["preflight"] for one in reversed(processes) if "preflight" in one.facts), None)
    try:
        return None if facts is None else TypeAdapter(Preflight).validate_python(facts)
    except ValidationError:  # those of another version
        return None


def profile_account(processes: Sequence[ProcessSpans], directory: Path) -> ProfileAccount | None:
    """Of the last process that had instruments; None where none had.

    Args:
        processes: of rank 0.
        directory: the ``efficiency`` folder.
    """
    facts: Mapping[str, Any] = next((one.facts["profile"] for one in reversed(processes) if "profile" in one.facts), {})
    instruments = [found for found in (_instrument(name, told) for name, told in facts.items()) if found is not None]
    if not instruments:
        return None
    files = [file for instrument in instruments for file in instrument.files]
    return ProfileAccount(
        instruments,
        operators=next(iter(tables(directory, files, "operators", OperatorTable)), None),
        memory=tables(directory, files, "memory", MemorySnapshot),
        functions=tables(directory, files, "python", FunctionTable),
        lines=next(iter(tables(directory, files, "lines", LineTable)), None),
        host_memory=next(iter(tables(directory, files, "host_memory", HostMemoryTable)), None),
    )


def _instrument(name: str, told: Any) -> InstrumentAccount | None:
    try:
        return TypeAdapter(InstrumentAccount).validate_python({**told, "name": name})
    except (TypeError, ValidationError):  # another topic's facts, or those of another version
        return None
