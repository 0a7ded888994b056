"""Sections of a run's page: where time, memory, tokens, money and energy went; findings, trace and profiles."""

import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hf_efficient.accounting.live import grouped, headline
from hf_efficient.records.account import RunAccount
from hf_efficient.records.amounts import BudgetAccount
from hf_efficient.records.trace import DeviceBreakdown
from hf_efficient.reporting import diagnosis as words
from hf_efficient.reporting import profile_tables as deeper
from hf_efficient.reporting import run_rows
from hf_efficient.reporting.html.render import Section
from hf_efficient.reporting.labels import all_phases, called, tokens_per_second, told
from hf_efficient.reporting.plots import over_time as machine
from hf_efficient.reporting.plots import steps as curves
from hf_efficient.reporting.plots.figure import Figure, Missing
from hf_efficient.reporting.run_data import RunData
from hf_efficient.text import count, counted, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd

_UNKNOWN = {"tokens": "tokens were not counted", "cost": "no price is known", "energy": "no meter was read"}


def _why(account: RunAccount, what: str) -> str:
    return next((gap.why for gap in account.not_measured if gap.what.startswith(what)), _UNKNOWN[what])


def _no_records(title: str) -> Missing:
    return Missing(title, "only run.json was kept of this run, not its records")


class Tile(NamedTuple):
    label: str
    value: str | None
    note: str = ""
    estimated: bool = False


def _tile(
    label: str, value: float | None, form: Callable[[float], str], note: str, why: str, estimated: bool = False
) -> Tile:
    """``why``: the note where the value is not known."""
    return Tile(label, None, why) if value is None else Tile(label, form(value), note, estimated)


def summary(run: RunData) -> Section:
    account, figures = run.account, headline(run.account, run.series)
    tokens, work, money, used, memory = account.tokens, account.work, account.money, account.energy, account.memory
    steps = f"{counted(account.steps.count, 'step')}{told(account.steps.p50_seconds, short_seconds, ' of {} (median)')}"
    padding = told(tokens.padding_share, share, ", and {} padding")
    read = f"{count(tokens.non_padding or 0)} without padding{padding}; {run_rows.STEPS_ALONE}"
    speed = told(work.hfu, share, "HFU {},") + told(work.peak_flops_per_second, flops, " of {}FLOP/s peak")
    reserved = told(memory.device_peak_reserved_bytes, size, ", {} reserved")
    peak, where = memory.device_peak_allocated_bytes, f"allocated on the device{reserved}"
    if peak is None:
        peak, where = memory.peak_rss_bytes, "of the host's memory"
    per_million = told(money.usd_per_million_non_padding_tokens, usd, "{} per million tokens without padding")
    gas = told(used.co2e_grams, grams, "{} CO₂e")
    why = work.reason or "the work was not counted"
    rest = f"{short_seconds(account.time.unattributed_seconds)} that no phase claimed"
    tiles = [
        Tile("Wall time", seconds(account.time.wall_seconds), f"{steps}{run_rows.times_run(account)}"),
        _tile("Throughput", tokens.non_padding_tokens_per_second, tokens_per_second, read, _why(account, "tokens")),
        _tile("MFU", work.mfu, share, speed.strip(" ,"), why, work.peak_estimated),
        _tile("Peak memory", peak, size, where, "not read"),
        _tile("Cost", money.cost_usd, usd, per_million, _why(account, "cost"), money.estimated),
        _tile("Energy", used.joules, kilowatt_hours, gas, _why(account, "energy"), used.estimated),
        _loss_tile(figures),
        _tile("Unattributed", figures["unattributed_share"], share, rest, rest),
    ]
    return Section("summary", "In short", context={"tiles": tiles})


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
    figure = _no_records("Over time") if run.series is None else machine.memory_over_time(run.account, run.series)
    return Section("memory", "Memory", [figure], context)


def learning_section(run: RunData) -> Section:
    series, account = run.series, run.account
    figures: list[Figure | Missing] = [_no_records("Loss")]
    if series is not None:
        preferences = curves.preference_curve(series.steps, told(account.preferences, run_rows.preference_words))
        figures = [curves.training_curve(series.steps, account.evaluations), *filter(None, [preferences])]
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
    first = _no_records("Tokens per step") if run.series is None else curves.step_tokens(run.series.steps)
    facts = [("tokens", run_rows.token_words(tokens)), ("sequences", run_rows.sequence_words(sequences))]
    lengths = curves.sequence_lengths(sequences)
    return Section("tokens", "Tokens and padding", [first, lengths], {"facts": facts}, "Tokens")


def cost_section(run: RunData) -> Section:
    money, used = run.account.money, run.account.energy
    paid, burnt = money.phase_usd or {}, used.phase_joules or {}
    figures = [machine.power(run.account, run.series)] if run.series is not None and used.joules is not None else []
    context = {
        "facts": [("money", run_rows.money_words(money)), ("energy", run_rows.energy_words(used))],
        "groups": grouped(dict.fromkeys([*paid, *burnt], 0.0)),
        "usd": {name: usd(value) for name, value in _with_parts(paid).items()},
        "joules": {name: kilowatt_hours(value) for name, value in _with_parts(burnt).items()},
        "meters": used.parts,
        "budget": _budget(money.budget),
        "no_price": _why(run.account, "cost") if money.cost_usd is None else "",
        "no_energy": _why(run.account, "energy") if used.joules is None else "",
    }
    return Section("cost", "Money and energy", figures, context, "Cost")


def _with_parts(by_phase: Mapping[str, float]) -> dict[str, float]:
    return {**by_phase, **{group.name: group.total for group in grouped(by_phase) if len(group.phases) > 1}}


def _budget(budget: BudgetAccount | None) -> str:
    if budget is None:
        return ""
    limits = told(budget.usd, usd), told(budget.hours, "{:g} h".format), told(budget.kwh, "{:g} kWh".format)
    text = f"The budget was {', '.join(filter(None, limits))}."
    if budget.reached is None:
        return f"{text} It was not reached."
    after = told(budget.reached_at_step, "{:,}".format, " after step {}")
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
    command = f"hf-efficient trace {shlex.quote(held.path)}"
    context: dict[str, Any] = {"run": held, "title": held.name, "command": command}
    if held.breakdown is None:
        return Section("trace", "Trace", context=context)
    trace = held.breakdown
    parts = [*map(_device, trace.devices)]
    if tables := list(deeper.host_tables(trace, _MOST_TRACE_ROWS)):
        parts.append({"title": "host", "tables": tables, "lines": []})
    context |= {"title": deeper.trace_title(trace, held.name), "remarks": list(trace.remarks), "parts": parts}
    return Section("trace", "Trace", context=context)


def _device(device: DeviceBreakdown) -> dict[str, Any]:
    tables = [*deeper.device_tables(device, "device time", _MOST_TRACE_ROWS)]
    return {"title": deeper.device_title(device), "tables": tables, "lines": list(deeper.device_lines(device))}
