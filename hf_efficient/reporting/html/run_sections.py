"""Why something is missing, in the account's own words.

The headline figures.

Where the time went.

Throughput, and the distribution of the step times.

Tokens, padding and sequence lengths.

Memory: over time, by kind, and its peaks.

Money and energy.

Loss, learning rate, gradient norm.

The machine over the time of a run, below the phases of the same axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_efficient.accounting.headline import grouped, headline
from hf_efficient.records.account import RunAccount
from hf_efficient.records.amounts import BudgetAccount, EnergyAccount, MemoryAccount, MoneyAccount
from hf_efficient.records.series import SystemSeries
from hf_efficient.records.steps import PHASES
from hf_efficient.reporting.html.render import Section
from hf_efficient.reporting.labels import (
    category_color,
    category_label,
    energies,
    phase_color,
    phase_label,
    prices,
    tokens_per_second,
)
from hf_efficient.reporting.plots.figure import Figure, Missing
from hf_efficient.reporting.plots.memory import memory_over_time
from hf_efficient.reporting.plots.steps import sequence_lengths, step_times, step_tokens, throughput, training_curve
from hf_efficient.reporting.plots.system import (
    cores_figure,
    disk_figure,
    gpu_figure,
    host_memory_figure,
    network_figure,
    phases_over_time,
    power,
)
from hf_efficient.reporting.plots.time import phase_shares, step_phases, time_bar
from hf_efficient.reporting.run_data import RunData
from hf_efficient.reporting.run_rows import hourly_price, price_source, told_parts
from hf_efficient.text import count, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd


def why(account: RunAccount, what: str, otherwise: str) -> str:
    """The reason that ``not_measured`` gives for the first thing whose name starts so; else ``otherwise``."""
    return next((gap.why for gap in account.not_measured if gap.what.startswith(what)), otherwise)


@dataclass(frozen=True)
class Tile:
    """One figure.

    Attributes:
        label: what it is.
        value: in words, with its unit; None: not known.
        note: a smaller line.
        estimated: whether it is marked so.
    """

    label: str
    value: str | None
    note: str = ""
    estimated: bool = False


def summary(run: RunData) -> Section:
    """The figures that a run is told in first."""
    return Section("summary", "In short", context={"tiles": tiles(run)})


def tiles(run: RunData) -> list[Tile]:
    """The headline, in its order."""
    account, figures = run.account, headline(run.account, run.series)
    unattributed = figures["unattributed_share"]
    return [
        Tile("Wall time", seconds(account.time.wall_seconds), _wall_note(account)),
        _throughput(account),
        _utilization(account),
        _memory(account),
        _money(account),
        _energy(account),
        _loss(figures),
        Tile(
            "Unattributed",
            None if unattributed is None else share(unattributed),
            f"{short_seconds(account.time.unattributed_seconds)} that no phase claimed",
        ),
    ]


def _wall_note(account: RunAccount) -> str:
    told = f"{account.steps.count:,} steps"
    if account.steps.p50_seconds is not None:
        told += f" of {short_seconds(account.steps.p50_seconds)} (median)"
    return told + told_parts(account)


def _throughput(account: RunAccount) -> Tile:
    rate, tokens = account.tokens.non_padding_tokens_per_second, account.tokens
    if rate is None:
        return Tile("Throughput", None, why(account, "tokens", "tokens were not counted"))
    padding = f", and {share(tokens.padding_share)} padding" if tokens.padding_share is not None else ""
    return Tile("Throughput", tokens_per_second(rate), f"{count(tokens.non_padding or 0)} without padding{padding}")


def _utilization(account: RunAccount) -> Tile:
    work = account.work
    if work.mfu is None:
        return Tile("MFU", None, work.reason or "the work was not counted")
    peak = "" if work.peak_flops_per_second is None else f" of {flops(work.peak_flops_per_second)}FLOP/s peak"
    hardware = "" if work.hfu is None else f"HFU {share(work.hfu)},"
    return Tile("MFU", share(work.mfu), f"{hardware}{peak}".strip(" ,"), work.peak_estimated)


def _memory(account: RunAccount) -> Tile:
    memory = account.memory
    if memory.device_peak_allocated_bytes is not None:
        reserved = memory.device_peak_reserved_bytes
        note = "allocated on the device" + (f", {size(reserved)} reserved" if reserved is not None else "")
        return Tile("Peak memory", size(memory.device_peak_allocated_bytes), note)
    if memory.peak_rss_bytes is not None:
        return Tile("Peak memory", size(memory.peak_rss_bytes), "of the host's memory")
    return Tile("Peak memory", None, "not read")


def _money(account: RunAccount) -> Tile:
    money = account.money
    if money.cost_usd is None:
        return Tile("Cost", None, why(account, "cost", "no price is known"))
    each = money.usd_per_million_non_padding_tokens
    note = f"{usd(each)} per million tokens without padding" if each is not None else ""
    return Tile("Cost", usd(money.cost_usd), note, money.estimated)


def _energy(account: RunAccount) -> Tile:
    used = account.energy
    if used.joules is None:
        return Tile("Energy", None, why(account, "energy", "no meter was read"))
    note = f"{grams(used.co2e_grams)} CO₂e" if used.co2e_grams is not None else ""
    return Tile("Energy", kilowatt_hours(used.joules), note, used.estimated)


def _loss(figures: dict[str, float | None]) -> Tile:
    before, after, logged = figures["loss_before"], figures["loss_after"], figures["training_loss"]
    if before is not None and after is not None:
        return Tile("Evaluation loss", f"{before:.3g} → {after:.3g}", "before → after training")
    if after is not None:
        return Tile("Evaluation loss", f"{after:.3g}", "at the last evaluation")
    if logged is not None:
        return Tile("Training loss", f"{logged:.3g}", "the last that was logged")
    return Tile("Loss", None, "none was logged")


@dataclass(frozen=True)
class PhaseRow:
    """A line of a table by phase.

    Attributes:
        kind: ``group``: a part of the run; ``part``: a phase of one; ``alone``: the only phase of its part.
        label: in words.
        color: None for a part of the run.
        seconds: of the wall time.
        device_seconds: of the device's; None where it is not known.
    """

    kind: str
    label: str
    color: str | None
    seconds: float
    device_seconds: float | None = None


def time_section(run: RunData) -> Section:
    """Over the run and per step."""
    time = run.account.time
    figures: list[Figure | Missing] = [time_bar(time)]
    if run.series is None:
        figures.append(Missing("Per step", "only run.json was kept of this run, not its records"))
    else:
        figures.append(step_phases(run.series.steps, run.account.steps))
    context = {
        "rows": phase_rows(run.account),
        "wall": time.wall_seconds,
        "first_step": time.time_to_first_step_seconds,
        "has_device": time.device_seconds is not None,
        "exposed": (time.device_seconds or {}).get("exposed_wait"),
    }
    return Section("time", "Where the time went", figures, context, "Time")


def phase_rows(account: RunAccount) -> list[PhaseRow]:
    """Parts of the run, each with its phases below it; a part of one phase is told as the phase alone."""
    time, device = account.time, account.time.device_seconds or {}
    rows = []
    for group in grouped({**time.phase_seconds, "unattributed": time.unattributed_seconds}):
        alone = len(group.phases) == 1
        if not alone:
            rows.append(PhaseRow("group", group.name, None, group.total))
        rows += [
            PhaseRow("alone" if alone else "part", phase_label(name), phase_color(name), seconds, device.get(name))
            for name, seconds in group.phases.items()
        ]
    return rows


def speed(run: RunData) -> Section:
    """Two plots, and how well the device was used."""
    account, series = run.account, run.series
    figures: list[Figure | Missing]
    if series is None:
        figures = [Missing("Throughput", "only run.json was kept of this run, not its records")]
    else:
        figures = [
            throughput(series.steps, account.tokens, len(account.ranks)),
            step_times(account.steps, series.step_seconds),
        ]
    return Section("speed", "Throughput and step times", figures, {"facts": _facts(run)}, "Speed")


def _facts(run: RunData) -> list[tuple[str, str, bool]]:
    """Name, figure, and whether it is estimated."""
    steps, work, facts = run.account.steps, run.account.work, []
    for name in ("p50", "p95", "p99", "max"):
        value = getattr(steps, f"{name}_seconds")
        if value is not None:
            facts.append((f"step time, {'longest' if name == 'max' else name}", short_seconds(value), False))
    if steps.warm_up_max_seconds is not None:
        facts.append(("longest step of the warm-up", short_seconds(steps.warm_up_max_seconds), False))
    if run.account.time.time_to_first_step_seconds is not None:
        facts.append(("until the first step was done", seconds(run.account.time.time_to_first_step_seconds), False))
    if run.account.sequences.samples_per_second is not None:
        facts.append(("samples per second", f"{run.account.sequences.samples_per_second:,.3g}", False))
    if work.model_flops is not None:
        facts.append(("work of the model", f"{flops(work.model_flops)}FLOP", False))
    if work.hardware_flops is not None:
        facts.append(
            ("work of the hardware, with padding and recomputation", f"{flops(work.hardware_flops)}FLOP", False)
        )
    if work.mfu is not None:
        facts.append(("model FLOPs utilization (MFU)", share(work.mfu), work.peak_estimated))
    if work.hfu is not None:
        facts.append(("hardware FLOPs utilization (HFU)", share(work.hfu), work.peak_estimated))
    if work.peak_flops_per_second is not None:
        where = f" ({work.peak_source})" if work.peak_source else ""
        told = f"{flops(work.peak_flops_per_second)}FLOP/s in {work.dtype or 'the dtype in use'}{where}"
        facts.append(("peak of one accelerator", told, work.peak_estimated))
    return facts


def tokens_section(run: RunData) -> Section:
    """Two plots and the counts."""
    tokens, sequences = run.account.tokens, run.account.sequences
    first: Figure | Missing
    if run.series is None:
        first = Missing("Tokens per step", "only run.json was kept of this run, not its records")
    else:
        first = step_tokens(run.series.steps, tokens)
    facts = [
        (name, f"{value:,}")
        for name, value in (
            ("tokens processed, padding included", tokens.processed),
            ("tokens without padding", tokens.non_padding),
            ("tokens that bear loss", tokens.loss_bearing),
            ("samples", sequences.samples),
            ("rows of batches", sequences.rows),
        )
        if value is not None
    ]
    if tokens.padding_share is not None:
        facts.insert(2, ("padding", share(tokens.padding_share)))
    if sequences.fill_rate is not None:
        facts.append(("packs filled to", share(sequences.fill_rate)))
    return Section("tokens", "Tokens and padding", [first, sequence_lengths(sequences)], {"facts": facts}, "Tokens")


def memory_section(run: RunData) -> Section:
    """The plot, a table of the kinds, and the peaks."""
    memory = run.account.memory
    figure: Figure | Missing
    if run.series is None:
        figure = Missing("Over time", "only run.json was kept of this run, not its records")
    else:
        figure = memory_over_time(run.account, run.series)
    kinds = [
        {
            "label": category_label(kind.name),
            "color": category_color(kind.name),
            "bytes": kind.bytes,
            "how": kind.how,
            "note": kind.note,
        }
        for kind in memory.categories
        if kind.bytes > 0
    ]
    largest = max((kind.bytes for kind in memory.categories), default=0)
    phases = [(phase_label(name), size(value)) for name, value in (memory.phase_peak_allocated_bytes or {}).items()]
    more = -sum(kind.bytes for kind in memory.categories if kind.bytes < 0)
    context = {
        "more": size(more) if more else "",
        "kinds": kinds,
        "largest": largest,
        "peaks": _peaks(memory),
        "phases": phases,
    }
    return Section("memory", "Memory", [figure], context)


def _peaks(memory: MemoryAccount) -> list[tuple[str, str]]:
    found = [
        (label, size(value))
        for label, value in (
            ("allocated on the device, at most", memory.device_peak_allocated_bytes),
            ("reserved on the device, at most", memory.device_peak_reserved_bytes),
            ("host memory of the process, at most", memory.peak_rss_bytes),
        )
        if value is not None
    ]
    if memory.device_allocation_retries is not None:
        found.append(("allocation retries", f"{memory.device_allocation_retries:,}"))
    return found


def cost_section(run: RunData) -> Section:
    """By phase, in total, meter by meter, and the budget."""
    money, used = run.account.money, run.account.energy
    by_phase = phase_shares(run.account) if money.phase_usd or used.phase_joules else None
    watts = power(run.account, run.series) if run.series is not None and used.joules is not None else None
    context = {
        "by_phase": by_phase,
        "power": watts,
        "facts": _cost_facts(money, used),
        "rows": _rows(money.phase_usd or {}, used.phase_joules or {}),
        "meters": _meters(used),
        "budget": _budget(money.budget),
        "no_price": why(run.account, "cost", "no price is known") if money.cost_usd is None else "",
        "no_energy": why(run.account, "energy", "no meter was read") if used.joules is None else "",
        "has_usd": bool(money.phase_usd),
        "has_joules": bool(used.phase_joules),
    }
    figures: list[Figure | Missing] = [each for each in (by_phase, watts) if each is not None]
    return Section("cost", "Money and energy", figures, context, "Cost")


def _cost_facts(money: MoneyAccount, used: EnergyAccount) -> list[tuple[str, str, bool]]:
    """Name, figure, and whether it is estimated."""
    facts: list[tuple[str, str, bool]] = []
    if money.cost_usd is not None:
        facts.append(("cost of the wall time", usd(money.cost_usd), money.estimated))
    if money.usd_per_million_non_padding_tokens is not None:
        told = usd(money.usd_per_million_non_padding_tokens)
        facts.append(("per million tokens without padding", told, money.estimated))
    if money.price_usd_per_hour is not None:
        where = f" ({price_source(money)})" if money.price_source else ""
        facts.append(("price", f"{hourly_price(money)}{where}", money.estimated))
    if used.joules is not None:
        facts.append(("energy", kilowatt_hours(used.joules), used.estimated))
    if used.co2e_grams is not None:
        facts.append(("CO₂ equivalent", grams(used.co2e_grams), used.estimated))
    if used.grid_grams_per_kwh is not None:
        where = f" ({used.grid_source})" if used.grid_source else ""
        facts.append(("of the grid", f"{used.grid_grams_per_kwh:,.4g} g/kWh{where}", False))
    return facts


def _meters(used: EnergyAccount) -> list[dict[str, Any]]:
    return [
        {
            "name": part.name,
            "energy": kilowatt_hours(part.joules),
            "source": part.source,
            "estimated": part.estimated,
            "note": part.note or (f"{seconds(part.missing_seconds)} not covered" if part.missing_seconds > 0 else ""),
        }
        for part in used.parts
    ]


def _rows(usd_by_phase: Mapping[str, float], joules_by_phase: Mapping[str, float]) -> list[dict[str, Any]]:
    """Parts of the run, each with its phases below it, in figures that stand under each other."""
    paid, burnt = _with_parts(usd_by_phase), _with_parts(joules_by_phase)
    costs, energy_used = prices(paid), energies(burnt)
    known = dict.fromkeys(sorted({*usd_by_phase, *joules_by_phase}, key=_order), 0.0)
    rows = []
    for group in grouped(known):
        alone = len(group.phases) == 1
        for name in ([] if alone else [group.name]) + list(group.phases):
            is_part = name in group.phases
            rows.append(
                {
                    "kind": "alone" if alone else "part" if is_part else "group",
                    "label": phase_label(name) if is_part else name,
                    "color": phase_color(name) if is_part else None,
                    "usd": costs.get(name, ""),
                    "joules": energy_used.get(name, ""),
                }
            )
    return rows


def _order(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def _with_parts(by_phase: Mapping[str, float]) -> dict[str, float]:
    return {**by_phase, **{group.name: group.total for group in grouped(by_phase) if len(group.phases) > 1}}


def _budget(budget: BudgetAccount | None) -> str:
    if budget is None:
        return ""
    limits = [
        text
        for value, text in (
            (budget.usd, usd(budget.usd or 0)),
            (budget.hours, f"{budget.hours:g} h" if budget.hours else ""),
            (budget.kwh, f"{budget.kwh:g} kWh" if budget.kwh else ""),
        )
        if value is not None
    ]
    told = f"The budget was {', '.join(limits)}."
    if budget.reached is None:
        return f"{told} It was not reached."
    after = f" after step {budget.reached_at_step:,}" if budget.reached_at_step is not None else ""
    return f"{told} It ended the run{after}: {budget.reached}."


def learning(run: RunData) -> Section:
    """One plot."""
    figure: Figure | Missing
    if run.series is None:
        figure = Missing("Loss", "only run.json was kept of this run, not its records")
    else:
        figure = training_curve(run.series.steps, run.account.evaluations)
    return Section("learning", "Loss and learning rate", [figure], short="Loss", template="figures")


_NOT_READ = "the sampler read nothing of it"


def system_section(run: RunData) -> Section | None:
    """Phases, processor, GPUs, host memory, disks, network; None where no sampler ran."""
    series, account = run.series, run.account
    if series is None or not len(series.system):
        return None
    found = [
        cores_figure(account, series, run.cpus) or Missing("Processor", _NOT_READ),
        *(gpu_figure(account, series, gpu, f"system-gpu-{gpu}") for gpu in series.system.gpus),
        host_memory_figure(account, series),
        disk_figure(account, series) or _quiet(series.system, "Disks", "disk_read_bytes_per_second"),
        network_figure(account, series) or _quiet(series.system, "Network", "network_sent_bytes_per_second"),
    ]
    figures: list[Figure | Missing] = [phases_over_time(account, series), *(one for one in found if one is not None)]
    return Section("system", "The machine beside the phases", figures, short="Machine", template="figures")


def _quiet(system: SystemSeries, title: str, counter: str) -> Missing:
    """That nothing moved, which is not the same as that nobody looked."""
    return Missing(title, "nothing moved" if counter in system.host else _NOT_READ)
