"""Rows about a run, made once for terminal and page: how much, where, what it was planned to be, rank by rank."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hf_efficient.records import account as rec
from hf_efficient.records import amounts
from hf_efficient.records.prepared import PreparedFacts
from hf_efficient.reporting import labels
from hf_efficient.reporting.labels import category_label, or_nothing, phase_label, signed_percent, told
from hf_efficient.reporting.terminal import FoundTable
from hf_efficient.text import count, counted, flops, grams, kilowatt_hours, seconds, share, short_seconds, size, usd

_MOST_METERS = 4
_WORTH_A_WORD = 0.01
STEPS_ALONE = "evaluations and saves apart"
"""What the seconds of a run's throughput leave out; a comparison leaves out the warm-up too."""
_LOGP = "log-probability of the better answer"
RANK_PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "checkpointing")
"""Shown of each rank, where any rank has them."""


def has_several_trainings(account: rec.RunAccount) -> bool:
    return any(len(process.trainings) > 1 for process in account.time.processes)


def times_run(account: rec.RunAccount) -> str:
    """Its starts and its calls of ``train()``, to be put behind others; nothing for a run of one start and one call."""
    starts = len(account.time.processes)
    text = f", {starts} starts" if starts > 1 else ""
    if has_several_trainings(account):
        text += f", {sum(len(process.trainings) for process in account.time.processes)} calls of train()"
    return text


def run_rows(account: rec.RunAccount) -> list[tuple[str, str]]:
    rows = [
        ("steps", step_words(account)),
        ("tokens", token_words(account.tokens)),
        ("sequences", sequence_words(account.sequences)),
        *([("preferences", preference_words(account.preferences))] if account.preferences else []),
        ("work", work_words(account.work)),
        *memory_rows(account.memory),
    ]
    if account.time.device_seconds:
        parts = [f"{phase_label(name)} {value:.2f} s" for name, value in account.time.device_seconds.items()]
        rows.append(("device", ", ".join(parts)))
    rows += [("energy", energy_words(account.energy)), ("money", money_words(account.money))]
    if account.prepared is not None:
        rows.append(("data", prepared_words(account.prepared, account.money.usd_per_million_non_padding_tokens)))
    if account.restarts:
        rows.append(("restarts", "; ".join(map(restart_words, account.restarts))))
    if account.badput is not None:
        rows.append(("badput", badput_words(account.badput)))
    if account.faults is not None:
        rows.append(("faults", fault_words(account.faults)))
    if account.preflight is not None:
        rows.append(("preflight", "; ".join(preflight_words(account.preflight))))
    return rows


def prepared_words(held: PreparedFacts, usd_per_million: float | None) -> str:
    kept = f"{count(held.rows)} of {counted(held.rows_in, 'row')} in {held.folder}"
    removed = held.tokens_removed
    if not removed:
        return f"{kept}; no token was removed"
    saved = told(usd_per_million, lambda price: usd(removed / 1e6 * price), ", which saves {} an epoch")
    return f"{kept}; {count(removed)} tokens removed{saved}"


def badput_words(held: rec.BadputAccount) -> str:
    named = {"restarts": held.restart_seconds, "steps done again": held.again_seconds}
    parts = [f"{name} {seconds(value)}" for name, value in named.items() if value]
    text = ", ".join([f"{counted(held.saves, 'checkpoint')} {seconds(held.checkpoint_seconds)}", *parts])
    undone = told(held.undone_seconds, seconds, "; a failure undoes about {} (estimated)")
    return f"{text}: {share(held.share)} of the time{_comma(held.cost_usd)}{undone}"


def fault_words(faults: rec.FaultAccount) -> str:
    noted = [
        (faults.not_finite, "step", "not finite"),
        (faults.spikes, "step", "a spike of the loss"),
        (faults.skipped, "step", "left out"),
        (faults.rolled_back, "step", "taken back to a checkpoint"),
        (faults.out_of_memory, "time", "out of memory"),
    ]
    saves = [(faults.saves_failed, "checkpoint", "not written"), (faults.mirrors_failed, "checkpoint", "not mirrored")]
    text = ", ".join(f"{counted(number, what)} {words}" for number, what, words in (*noted, *saves) if number)
    return text + " (details: efficiency/faults)" * any(number for number, *_ in noted)


def held_table(account: rec.RunAccount) -> FoundTable | None:
    held = [one for one in account.time.held if one.share >= _WORTH_A_WORD]
    if not held:
        return None
    return FoundTable(
        headings=("callbacks and your own methods", "within", "seconds", "of the loop"),
        rows=[(one.name, phase_label(one.phase), f"{one.seconds:,.2f}", share(one.share)) for one in held],
        words=(0, 1),
    )


def step_words(account: rec.RunAccount) -> str:
    steps = account.steps
    percentiles = (("p50", steps.p50_seconds), ("p95", steps.p95_seconds), ("p99", steps.p99_seconds))
    times = [f"{name} {short_seconds(value)}" for name, value in percentiles if value is not None]
    if len(times) < len(percentiles):
        return f"{steps.count}"
    until = told(account.time.time_to_first_step_seconds, seconds, "; the first was done {} after the start")
    return f"{steps.count:,}: {', '.join(times)}, without {steps.warm_up_count} of warm-up{until}"


def token_words(tokens: amounts.TokenAccount) -> str:
    named = {"processed": tokens.processed, "without padding": tokens.non_padding, "targets": tokens.target}
    counts = [told(value, count, f"{{}} {name}") for name, value in named.items()]
    padding, speed = told(tokens.padding_share, share, "{} padding"), f"{{}} per second without padding, {STEPS_ALONE}"
    rate = told(tokens.non_padding_tokens_per_second, "{:,.0f}".format, speed)
    return ", ".join(filter(None, [*counts, padding, rate])) or "not counted"


def sequence_words(held: amounts.SequenceAccount) -> str:
    rows = "" if held.rows == held.samples else told(held.rows, lambda rows: f" in {counted(rows, 'row')}")
    shortest, longest = held.shortest_tokens, held.longest_tokens
    parts = (
        told(held.samples, count, f"{{}}{rows}"),
        told(held.samples_per_second, labels.three_digits, "{} per second of the steps"),
        told(held.mean_tokens, lambda mean: f"{mean:,.0f} tokens each ({shortest:,} to {longest:,})"),
        told(held.fill_rate, share, "packs {} full"),
    )
    return ", ".join(filter(None, parts)) or "not counted"


def preference_words(held: amounts.PreferenceAccount) -> str:
    """``margin 0.01 to 0.83, accuracy 48% to 81%, log-probability of the better answer -40.1 to -43.5; ...``."""
    parts = []
    for name, label in (("margin", "margin"), ("accuracy", "accuracy"), ("chosen_logp", _LOGP)):
        if name in held.first:
            shown = share if name == "accuracy" else lambda value: f"{value:.3g}"
            parts.append(f"{label} {shown(held.first[name])} to {shown(held.last[name])}")
    words, lengths = ", ".join(parts), held.lengths
    if lengths is not None:
        words += f"; answers of {lengths.chosen_tokens:,.0f} tokens preferred to {lengths.rejected_tokens:,.0f}"
        words += told(lengths.longer_chosen_share, share, ", the longer one in {} of the pairs")
    return words


def work_words(work: amounts.WorkAccount) -> str:
    """``12.3 TFLOPs (14 TFLOPs computed), MFU 31.2% (HFU 40.1%) of 1.2 TFLOP/s (bf16, a matmul measured here)``."""
    if work.model_flops is None:
        return f"n/a: {work.reason or 'not known'}"
    text = f"{flops(work.model_flops)}FLOPs{told(work.hardware_flops, flops, ' ({}FLOPs computed)')}"
    if work.mfu is None or work.peak_flops_per_second is None:
        return f"{text}, MFU n/a: {work.reason or 'not known'}"
    of = f"{work.accelerators} x " if work.accelerators > 1 else ""
    source = (work.peak_source or "").split(":")[0]
    of += f"{flops(work.peak_flops_per_second)}FLOP/s ({work.dtype}, {source})"
    return f"{text}, MFU {share(work.mfu)} (HFU {or_nothing(work.hfu, share)}) of {of}"


def memory_rows(memory: amounts.MemoryAccount) -> Iterator[tuple[str, str]]:
    yield ("memory", memory_peaks(memory))
    if memory.categories:
        held = sorted(memory.categories, key=lambda one: -one.bytes)
        parts = [f"{category_label(kind.name)} {size(kind.bytes)}" for kind in held if kind.bytes > 0]
        more = more_than_the_peak(memory)
        rest = f"; {size(more)} of that are not there at the moment of the peak" if more else ""
        yield ("", ", ".join(parts) + rest)
    if memory.phase_peak_allocated_bytes:
        phases = sorted(memory.phase_peak_allocated_bytes.items(), key=lambda one: -one[1])
        yield ("", "at most in " + ", ".join(f"{phase_label(name)} {size(peak)}" for name, peak in phases))


def memory_peaks(memory: amounts.MemoryAccount) -> str:
    peaks = (
        (memory.peak_rss_bytes, "at most in the host's memory"),
        (memory.device_peak_allocated_bytes, "allocated on the device"),
        (memory.device_peak_reserved_bytes, "reserved"),
    )
    words = [f"{size(value)} {what}" for value, what in peaks if value is not None]
    if memory.device_allocation_retries:
        words.append(f"{memory.device_allocation_retries} allocation retries")
    return ", ".join(words) or "not known"


def more_than_the_peak(memory: amounts.MemoryAccount) -> int:
    """What the kinds of memory come to beyond the peak, which does not hold all of them at once."""
    return -sum(kind.bytes for kind in memory.categories if kind.bytes < 0)


def energy_words(energy: amounts.EnergyAccount) -> str:
    if energy.joules is None:
        return "not known"
    text = kilowatt_hours(energy.joules)
    if energy.estimated:
        text += " (estimated)" if all(part.estimated for part in energy.parts) else " (in part estimated)"
    if 1 < len(energy.parts) <= _MOST_METERS:
        text += f": {', '.join(f'{part.name} {kilowatt_hours(part.joules)}' for part in energy.parts)}"
    if energy.co2e_grams is None or energy.grid_grams_per_kwh is None:
        return text
    grid = f"{energy.grid_grams_per_kwh:g} g/kWh ({energy.grid_source})"
    return f"{text}; {grams(energy.co2e_grams)} CO2e at {grid}"


def money_words(money: amounts.MoneyAccount) -> str:
    if money.cost_usd is None or money.price_usd_per_hour is None:
        return "not known"
    estimated = "estimated: " if money.estimated else ""
    low, high, source = money.lowest_price_usd_per_hour, money.highest_price_usd_per_hour, money.price_source or ""
    price = f"{usd(money.price_usd_per_hour)}/h"
    if low is not None and high is not None:
        source = f"each start at its own; the last at {price}, {source}"
        price = f"{usd(low)} to {usd(high)}/h"
    each = told(money.usd_per_million_non_padding_tokens, usd, "{} per million tokens without padding")
    phases = money.phase_usd or {}
    pauses = (("evaluation", "evaluations"), ("checkpointing", "checkpoints"))
    apart = ", ".join(f"{label} {usd(phases[name])}" for name, label in pauses if phases.get(name))
    return "; ".join(filter(None, [f"{usd(money.cost_usd)} at {price} ({estimated}{source})", each, apart]))


def restart_words(one: rec.RestartAccount) -> str:
    cost = _comma(one.cost_usd)
    if one.resumed_after_step is None:
        return f"start {one.process + 1} never came to train: {seconds(one.start_seconds)}{cost}"
    where = f"resumed from step {one.resumed_after_step}" if one.resumed_after_step else "from the first step again"
    lost = f", {counted(one.steps_again, 'step')} done again" if one.steps_again else ""
    took = f"{seconds(one.start_seconds)} until it trained"
    took += f" and {seconds(one.seconds_again)} of lost steps" if one.steps_again else ""
    return f"start {one.process + 1} {where}{lost}: {took}{cost}"


def preflight_words(found: rec.Preflight) -> list[str]:
    took = f"in {seconds(found.wall_seconds)}"
    how = f"passed {took}" if found.failure is None else f"failed {took}, in {found.failure.stage}"
    return [*filter(None, (_longest_batch(found), _saved(found), _disk(found))), how]


def _longest_batch(found: rec.Preflight) -> str:
    if found.batch_rows is None or found.training_peak_bytes is None:
        return ""
    text = f"longest batch {found.batch_rows} x {count(found.batch_tokens or 0)} tokens"
    if found.micro_batches is not None and found.micro_batches != found.recipe_micro_batches:
        text += f" ({found.micro_batches} of {found.recipe_micro_batches} micro-batches a step)"
    text += f": peak {size(found.training_peak_bytes)}{told(found.memory_bytes, size, ' of {}')}"
    text += told(found.evaluation_rows, lambda rows: f"; {counted(rows, 'row')} evaluated")
    return text + told(found.evaluation_peak_bytes, size, ": peak {}")


def _saved(found: rec.Preflight) -> str:
    if found.checkpoint_bytes is None or found.save_seconds is None:
        return ""
    text = f"saved {size(found.checkpoint_bytes)} in {short_seconds(found.save_seconds)}"
    if found.load_seconds is None:
        why = ": train.save_only_model keeps no optimizer" if found.fingerprint else ""  # none of a user's Trainer
        return text if found.failure else f"{text}; not loaded back{why}"
    text += f", loaded back in {short_seconds(found.load_seconds)}"
    if found.failure:
        return text
    text += f": {found.compared_tensors} tensors of weights and optimizer are equal"
    if found.next_loss is None or found.next_loss_after_load is None:
        return text
    if found.next_loss == found.next_loss_after_load:
        return f"{text}, and the next loss, {found.next_loss:.4g}, bit for bit"
    return f"{text}; the next loss is {found.next_loss_after_load:.9g}, it was {found.next_loss:.9g}"


def _disk(found: rec.Preflight) -> str:
    if found.needed_bytes is None or found.free_bytes is None:
        return ""
    to_come = counted(found.checkpoints_to_come or 0, "checkpoint")
    return f"{to_come} to come and the model need {size(found.needed_bytes)}, {size(found.free_bytes)} are free"


def machine_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Of ``facts.environment.describe_environment``; nothing of what an older version did not record."""
    gpus = found.get("gpus")
    for gpu in gpus or ():
        capability = f", capability {gpu['capability']}" if gpu.get("capability") else ""
        yield "GPU", f"{gpu['name']}, {size(gpu['memory_bytes'])}{capability}"
    if "gpus" in found and not gpus:
        yield "GPU", "unknown" if gpus is None else "none that torch can use"
    known = ((kind, found.get(f"{kind}_cores")) for kind in ("physical", "logical", "usable"))
    cores = [f"{number} {kind}" for kind, number in known if number]
    changed = " with changes" if found.get("git_dirty") else ""
    named = {
        "CPU": found.get("cpu"),
        "cores": ", ".join(cores),
        "memory": size(found["memory_bytes"]) if "memory_bytes" in found else "",
        "system": found.get("platform"),
        "Python": found.get("python"),
        "CUDA": found.get("cuda"),
        "NVIDIA driver": found.get("driver"),
        "git commit": f"{found['git_commit']}{changed}" if found.get("git_commit") else "",
    }
    yield from ((name, value) for name, value in named.items() if value)


_PLANNED = labels.figures("planned")


class PlanRow(NamedTuple):
    label: str
    predicted: str
    observed: str
    error: str


def plan_rows(plan: rec.PlanAccount) -> list[PlanRow]:
    rows = []
    for one in _planned(plan):
        label, form = _form(one.name)
        is_exact = one.relative_error is not None and one.predicted == one.observed
        error = "exact" if is_exact else signed_percent(one.relative_error)
        rows.append(PlanRow(label, or_nothing(one.predicted, form), or_nothing(one.observed, form), error))
    return rows


def plan_notes(plan: rec.PlanAccount) -> list[str]:
    """Why one is not known, or what they are of: each remark once, behind what it is about."""
    about: dict[str, list[str]] = {}
    for figure in _planned(plan):
        if figure.note:
            about.setdefault(figure.note, []).append(_form(figure.name)[0])
    return [f"{', '.join(names)}: {note}" for note, names in about.items()]


def _planned(plan: rec.PlanAccount) -> list[rec.PlanFigure]:
    return [one for one in plan.figures if one.predicted is not None or one.observed is not None]


def _form(name: str) -> tuple[str, Callable[[float], str]]:
    if name not in _PLANNED and name.endswith("_bytes"):
        return category_label(name.removesuffix("_bytes")), size
    return _PLANNED.get(name, (name.replace("_", " "), "{:,.4g}".format))


def rank_table(account: rec.RunAccount) -> FoundTable:
    """A row for each rank: the device's seconds where its events gave them; the host's memory on a CPU."""
    shown = [name for name in RANK_PHASES if any(_rank_seconds(one, name) for one in account.ranks)]
    rows = []
    for one in account.ranks:
        where = ", ".join(part for part in (one.host, one.device) if part)
        phases = [seconds(_rank_seconds(one, name)) for name in shown]
        waited = (one.device_seconds or {}).get("communication", one.waited_seconds)
        peak = one.peak_rss_bytes if one.device_peak_allocated_bytes is None else one.device_peak_allocated_bytes
        known = [or_nothing(waited, seconds), or_nothing(peak, size)]
        rows.append([str(one.rank), where, f"{one.steps:,}", seconds(one.training_seconds), *phases, *known])
    headings = ["rank", "on", "steps", "training", *map(phase_label, shown), "waits", "memory"]
    return FoundTable(headings, rows, words=(0, 1))


def _rank_seconds(rank: rec.RankAccount, name: str) -> float:
    return (rank.device_seconds or {}).get(name) or (rank.phase_seconds or {}).get(name, 0.0)


def across_lines(account: rec.RunAccount) -> Iterator[str]:
    across, training = account.across, account.time.training_seconds
    if across is None or training <= 0:
        return
    if across.exposed_seconds is not None and across.late_seconds is not None:
        by = "by its device's events" if across.exposed_by == "device" else "by the host's waits"
        text = (
            f"communication: {seconds(across.exposed_seconds)} exposed ({share(across.exposed_seconds / training)} of "
            f"the training{_comma(across.exposed_usd)}), estimated {by} on the rank that waited least; beyond that the "
            f"ranks waited {seconds(across.late_seconds)} each for those that came later{_comma(across.late_usd)}"
        )
        hidden = "; {} are covered by computation (estimated by DDP's own log)"
        yield text + told(across.covered_seconds, seconds, hidden)
    for skew in across.skew:
        if skew.extra_seconds >= _WORTH_A_WORD * training:
            yield _skew(skew, across)


def _skew(skew: rec.PhaseSkew, across: rec.AcrossRanks) -> str:
    where = [skew.host] if skew.host is not None and (across.hosts or 0) > 1 else []
    where += [skew.device] if skew.device is not None and skew.device != "cpu" else []
    others = "the other" if across.ranks == 2 else "the others"
    return (
        f"rank {skew.rank}{' (' + ', '.join(where) + ')' if where else ''} takes {seconds(skew.extra_seconds)} longer "
        f"than {others} in {phase_label(skew.phase)}{' on the device' if skew.on_device else ''}{_comma(skew.usd)}"
    )


def _comma(money: float | None) -> str:
    return told(money, usd, ", {}")
