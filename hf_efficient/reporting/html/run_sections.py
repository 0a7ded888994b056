"""Sections of a run's page: where time, memory, tokens, money and energy went; findings, trace and profiles."""

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from hf_efficient.accounting.live import grouped, headline
from hf_efficient.records.account import RunAccount
from hf_efficient.records.amounts import BudgetAccount, MemoryAccount
from hf_efficient.records.trace import DeviceBreakdown
from hf_efficient.reporting import diagnosis as words
from hf_efficient.reporting import profile_tables as deeper
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.html.render import Section
from hf_efficient.reporting.labels import all_phases, called, tokens_per_second
from hf_efficient.reporting.plots import over_time as machine
from hf_efficient.reporting.plots import steps as curves
from hf_efficient.reporting.plots.figure import Figure, Missing
from hf_efficient.reporting.plots.over_time import memory_over_time
from hf_efficient.reporting.run_data import RunData
from hf_efficient.text import count, counted, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd


def _why(account: RunAccount, what: str, otherwise: str) -> str:
    return next((gap.why for gap in account.not_measured if gap.what.startswith(what)), otherwise)


def _no_records(title: str) -> Missing:
    return Missing(title, "only run.json was kept of this run, not its records")


class Tile(NamedTuple):
    label: str
    value: str | None
    note: str = ""
    estimated: bool = False


def summary(run: RunData) -> Section:
    account, figures = run.account, headline(run.account, run.series)
    unattributed, median = figures["unattributed_share"], account.steps.p50_seconds
    steps = counted(account.steps.count, "step") + ("" if median is None else f" of {short_seconds(median)} (median)")
    rest = f"{short_seconds(account.time.unattributed_seconds)} that no phase claimed"
    tiles = [
        Tile("Wall time", seconds(account.time.wall_seconds), f"{steps}{run_rows.times_run(account)}"),
        _throughput_tile(account),
        _utilization_tile(account),
        _memory_tile(account.memory),
        _money_tile(account),
        _energy_tile(account),
        _loss_tile(figures),
        Tile("Unattributed", None if unattributed is None else share(unattributed), rest),
    ]
    return Section("summary", "In short", context={"tiles": tiles})


def _throughput_tile(account: RunAccount) -> Tile:
    rate, tokens = account.tokens.non_padding_tokens_per_second, account.tokens
    if rate is None:
        return Tile("Throughput", None, _why(account, "tokens", "tokens were not counted"))
    padding = f", and {share(tokens.padding_share)} padding" if tokens.padding_share is not None else ""
    return Tile(
        "Throughput",
        tokens_per_second(rate),
        f"{count(tokens.non_padding or 0)} without padding{padding}; {run_rows.STEPS_ALONE}",
    )


def _utilization_tile(account: RunAccount) -> Tile:
    work = account.work
    if work.mfu is None:
        return Tile("MFU", None, work.reason or "the work was not counted")
    peak = "" if work.peak_flops_per_second is None else f" of {flops(work.peak_flops_per_second)}FLOP/s peak"
    hardware = "" if work.hfu is None else f"HFU {share(work.hfu)},"
    return Tile("MFU", share(work.mfu), f"{hardware}{peak}".strip(" ,"), work.peak_estimated)


def _memory_tile(memory: MemoryAccount) -> Tile:
    if memory.device_peak_allocated_bytes is not None:
        reserved = memory.device_peak_reserved_bytes
        note = "allocated on the device" + (f", {size(reserved)} reserved" if reserved is not None else "")
        return Tile("Peak memory", size(memory.device_peak_allocated_bytes), note)
    if memory.peak_rss_bytes is not None:
        return Tile("Peak memory", size(memory.peak_rss_bytes), "of the host's memory")
    return Tile("Peak memory", None, "not read")


def _money_tile(account: RunAccount) -> Tile:
    money = account.money
    if money.cost_usd is None:
        return Tile("Cost", None, _why(account, "cost", "no price is known"))
    each = money.usd_per_million_non_padding_tokens
    note = f"{usd(each)} per million tokens without padding" if each is not None else ""
    return Tile("Cost", usd(money.cost_usd), note, money.estimated)


def _energy_tile(account: RunAccount) -> Tile:
    used = account.energy
    if used.joules is None:
        return Tile("Energy", None, _why(account, "energy", "no meter was read"))
    note = f"{grams(used.co2e_grams)} CO₂e" if used.co2e_grams is not None else ""
    return Tile("Energy", kilowatt_hours(used.joules), note, used.estimated)


def _loss_tile(figures: Mapping[str, float | None]) -> Tile:
    before, after, logged = figures["loss_before"], figures["loss_after"], figures["training_loss"]
    if before is not None and after is not None:
        return Tile("Evaluation loss", f"{before:.3g} → {after:.3g}", "before → after training")
    if after is not None:
        return Tile("Evaluation loss", f"{after:.3g}", "at the last evaluation")
    if logged is not None:
        return Tile("Training loss", f"{logged:.3g}", "the last that was logged")
    return Tile("Loss", None, "none was logged")


def time_section(run: RunData) -> Section:
    time = run.account.time
    steps = _no_records("Per step") if run.series is None else curves.step_phases(run.series.steps, run.account.steps)
    context = {
        "groups": grouped(all_phases(time)),
        "wall": time.wall_seconds,
        "device": time.device_seconds,
        "held": run_rows.held_table(run.account),
    }
    return Section("time", "Where the time went", [steps], context, "Time")


def system_section(run: RunData) -> Section | None:
    series, account = run.series, run.account
    if series is None or not len(series.system):
        return None
    found = [
        machine.phases_over_time(account, series),
        machine.cores_figure(account, series, run.cpus) or Missing("Processor", machine.NOT_READ),
        *(machine.gpu_figure(account, series, gpu, f"system-gpu-{gpu}") for gpu in series.system.gpus),
        machine.flow_figure(account, series, "system-disks", "Disks"),
        machine.flow_figure(account, series, "system-network", "Network"),
    ]
    figures = [one for one in found if one is not None]
    return Section("system", "The machine beside the phases", figures, short="Machine", macro="figures")


def memory_section(run: RunData) -> Section:
    memory = run.account.memory
    more = run_rows.more_than_the_peak(memory)
    context = {
        "kinds": [kind for kind in memory.categories if kind.bytes > 0],
        "largest": max((kind.bytes for kind in memory.categories), default=0),
        "more": size(more) if more else "",
        "peaks": [("peaks", run_rows.memory_peaks(memory))],
        "phases": (memory.phase_peak_allocated_bytes or {}).items(),
    }
    figure = _no_records("Over time") if run.series is None else memory_over_time(run.account, run.series)
    return Section("memory", "Memory", [figure], context)


def learning_section(run: RunData) -> Section:
    series, account = run.series, run.account
    figures: list[Figure | Missing] = [_no_records("Loss")]
    if series is not None:
        held = "" if account.preferences is None else run_rows.preference_words(account.preferences)
        preferences = curves.preference_curve(series.steps, held)
        figures = [curves.training_curve(series.steps, account.evaluations), *([preferences] if preferences else [])]
    return Section("learning", "Loss and learning rate", figures, short="Loss", macro="figures")


def speed_section(run: RunData) -> Section:
    account, series = run.account, run.series
    figures: list[Figure | Missing] = [_no_records("Throughput")]
    if series is not None:
        rates = curves.throughput(series.steps, account.tokens, len(account.ranks))
        figures = [rates, curves.step_times(account.steps, series.step_seconds)]
    facts = [("steps", run_rows.step_words(account)), ("work", run_rows.work_words(account.work))]
    facts += [] if account.faults is None else [("faults", run_rows.fault_words(account.faults))]
    return Section("speed", "Throughput and step times", figures, {"facts": facts}, "Speed")


def tokens_section(run: RunData) -> Section:
    tokens, sequences = run.account.tokens, run.account.sequences
    first = _no_records("Tokens per step") if run.series is None else curves.step_tokens(run.series.steps, tokens)
    facts = [("tokens", run_rows.token_words(tokens)), ("sequences", run_rows.sequence_words(sequences))]
    lengths = curves.sequence_lengths(sequences)
    return Section("tokens", "Tokens and padding", [first, lengths], {"facts": facts}, "Tokens")


def cost_section(run: RunData) -> Section:
    money, used = run.account.money, run.account.energy
    paid, burnt = money.phase_usd or {}, used.phase_joules or {}
    watts = machine.power(run.account, run.series) if run.series is not None and used.joules is not None else None
    context = {
        "power": watts,
        "facts": [("money", run_rows.money_words(money)), ("energy", run_rows.energy_words(used))],
        "groups": grouped(dict.fromkeys([*paid, *burnt], 0.0)),
        "usd": {name: usd(value) for name, value in _with_parts(paid).items()},
        "joules": {name: kilowatt_hours(value) for name, value in _with_parts(burnt).items()},
        "meters": used.parts,
        "budget": _budget(money.budget),
        "no_price": _why(run.account, "cost", "no price is known") if money.cost_usd is None else "",
        "no_energy": _why(run.account, "energy", "no meter was read") if used.joules is None else "",
    }
    return Section("cost", "Money and energy", [] if watts is None else [watts], context, "Cost")


def _with_parts(by_phase: Mapping[str, float]) -> dict[str, float]:
    return {**by_phase, **{group.name: group.total for group in grouped(by_phase) if len(group.phases) > 1}}


def _budget(budget: BudgetAccount | None) -> str:
    if budget is None:
        return ""
    limits = [] if budget.usd is None else [usd(budget.usd)]
    limits += [f"{value:g} {unit}" for value, unit in ((budget.hours, "h"), (budget.kwh, "kWh")) if value is not None]
    text = f"The budget was {', '.join(limits)}."
    if budget.reached is None:
        return f"{text} It was not reached."
    after = f" after step {budget.reached_at_step:,}" if budget.reached_at_step is not None else ""
    return f"{text} It ended the run{after}: {budget.reached}."


_MOST_TRACE_ROWS = 12
_MOST_PROFILE_ROWS = 25
_PLOTTED = {rule: section for section, rules in called("sections").items() for rule in rules}


def findings_section(run: RunData) -> Section | None:
    diagnosis = run.diagnosis
    if diagnosis is None:
        return None
    change = words.change_words if run.recipe is not None else words.argument_words
    numbered = enumerate(diagnosis.findings, 1)
    changed = [number for number, one in numbered if any(each.overrides for each in one.remedies)]
    applies = f"hf-efficient diagnose {shlex.quote(run.directory)} --apply next.yaml --finding"
    context = {
        "diagnosis": diagnosis,
        "words": words,
        "chips": called("chips"),
        "plotted": _PLOTTED,
        "lines": lambda remedy: "\n".join(change(key, value) for key, value in remedy.overrides.items()),
        "is_recipe": run.recipe is not None,
        "command": f"{applies} {changed[0]}" if changed and run.recipe is not None else "",
        "judged": len(diagnosis.rules) - len(diagnosis.abstentions),
    }
    return Section("findings", "Findings", context=context)


def profile_section(run: RunData) -> Section | None:
    profile = run.account.profile
    if profile is None:
        return None
    context = {
        "tables": list(deeper.found_tables(profile, _MOST_PROFILE_ROWS)),
        "instruments": deeper.instrument_rows(profile.instruments),
        "remark": deeper.shared_remark(profile.instruments),
    }
    return Section("profile", "Profile", context=context)


def trace_section(run: RunData) -> Section | None:
    held = run.trace
    if held is None:
        return None
    context: dict[str, Any] = {
        "why": held.why,
        "title": held.name,
        "command": f"hf-efficient trace {shlex.quote(held.path)}",
        "others": held.others,
    }
    if held.breakdown is None:
        return Section("trace", "Trace", context=context)
    trace = held.breakdown
    parts = [*map(_device, trace.devices)]
    if tables := list(deeper.host_tables(trace, _MOST_TRACE_ROWS)):
        parts.append({"title": "host", "tables": tables, "lines": []})
    context |= {"title": deeper.trace_title(trace, held.name), "remarks": list(trace.remarks), "parts": parts}
    return Section("trace", "Trace", context=context)


def _device(device: DeviceBreakdown) -> dict[str, Any]:
    first = deeper.device_time_table(device, "device time"), deeper.work_table(device)
    tables = [*first, *deeper.device_tables(device, _MOST_TRACE_ROWS)]
    return {"title": deeper.device_title(device), "tables": tables, "lines": list(deeper.device_lines(device))}
