"""Padding, and micro-batches so small that what each costs by itself outweighs its tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from hf_efficient.accounting.steps import Column
from hf_efficient.diagnosis.case import MATTERS, Case, IsolatedRecipe, Verdict, abstains, finding, rule
from hf_efficient.diagnosis.remedies import ISOLATE
from hf_efficient.diagnosis.rules.machine import core_wait
from hf_efficient.diagnosis.rules.memory import memory_room, position_bytes
from hf_efficient.estimate.throughput import batch_time
from hf_efficient.records.findings import Cost, Finding, Gain, Remedy
from hf_efficient.text import counted, share

MOST_TIMES = 16
NO_LINE: Final = (
    "what a micro-batch costs by itself is not known: too few steps, or their tokens hardly differ",
    ISOLATE,
)
_MUCH_FIXED = 0.3
_MOST_LENGTHS = 50_000  # of which padding is counted
_FIXED = "steps.jsonl: forward and backward over tokens"
_ARGUMENTS = "spans.jsonl: settings.arguments"


@rule()
def padding_waste(case: Case) -> Verdict:
    """A seventh of the positions or more is padding: what grouping by length or packing would give on these lengths."""
    padded = case.account.tokens.padding_share
    if padded is None:
        return abstains("tokens are not counted", "EfficientTrainerMixin in place of the callback")
    if padded < 0.15:
        return None
    computed, remedies = case.compute_seconds, []
    grouped = _grouped(case, case.argument("per_device_train_batch_size"))
    if grouped is not None and case.can_be_grouped and grouped < padded:
        left = (1 - padded) / (1 - grouped)  # positions for the same tokens, against those of now
        basis = f"{share(grouped)} of padding on these lengths, time by positions computed"
        overrides: dict[str, Any] = {"train.train_sampling_strategy": "group_by_length"}
        costs = "the examples come in another order, those of like length together"
        gain = case.gain(computed * (1 - left), basis)
        remedies.append(Remedy("put examples of like length into a batch", overrides, costs, gain))
    if case.can_be_packed and (case.recipe is None or case.recipe.get("objective", "sft") == "sft"):
        gain = case.gain(computed * padded, "no padding, time by positions computed")
        costs = "a step holds more examples, so that an epoch has fewer steps"
        remedies.append(Remedy("pack examples into rows of the full length", {"train.packing": True}, costs, gain))
    return finding(
        f"{share(padded)} of the positions that are computed are padding",
        [
            ("padding", padded, "share", "run.json: tokens.padding_share"),
            ("time in forward and backward", computed, "seconds", "steps.jsonl: phase_seconds"),
        ],
        remedies,
        case.cost(computed * padded),
        severity="warning" if case.share(computed * padded) >= 0.1 else "info",
    )


def _grouped(case: Case, rows: int | None) -> float | None:
    """By the lengths that the run saw, in as many examples as its data have."""
    examples = case.facts.get("loader", {}).get("rows")
    return grouped_padding_share(case.account.sequences.length_buckets, rows, int(examples or 0))


def grouped_padding_share(length_buckets: Mapping[str, int], rows: int | None, examples: int = 0) -> float | None:
    """Share of padding where examples of like length share a batch; None without lengths or rows. As transformers'
    sampler does: shuffled, in stretches of fifty batches, each sorted by length. Documents lie evenly between the
    bounds of their bucket; ``examples``: as many there are at least, since the stretches of few are short."""
    if not length_buckets or not rows:
        return None
    times = -(-min(examples, _MOST_LENGTHS) // sum(length_buckets.values()))
    lengths = _shuffled({bound: count * max(1, times) for bound, count in length_buckets.items()})
    stretch = rows * min(50, max(1, len(lengths) // (rows * 4)))
    return _padding_share(lengths, rows, stretch)


def _shuffled(length_buckets: Mapping[str, int]) -> Column:
    counts = sorted((int(bound), count) for bound, count in length_buckets.items())
    keep = min(1.0, _MOST_LENGTHS / sum(count for _, count in counts))
    found = [np.linspace(bound / 2 ** (1 / 4), bound, max(1, round(count * keep))) for bound, count in counts]
    lengths = np.concatenate(found)
    np.random.default_rng(0).shuffle(lengths)
    return lengths


def _padding_share(lengths: Column, rows: int, stretch: int) -> float:
    held = positions = 0.0
    for start in range(0, len(lengths), stretch):
        ordered = np.sort(lengths[start : start + stretch])[::-1]
        for first in range(0, len(ordered), rows):
            batch = ordered[first : first + rows]
            held += float(batch.sum())
            positions += float(batch.max()) * len(batch)
    return 1 - held / positions


@dataclass(frozen=True)
class MicroBatch:
    """The mean micro-batch of rank 0 after warm-up; ``tokens`` include padding. Of the seconds of forward and backward
    ``fixed_seconds`` do not grow with the tokens; ``around_seconds`` are the Trainer's own between micro-batches."""

    tokens: float
    seconds: float
    fixed_seconds: float
    around_seconds: float

    @property
    def fixed_share(self) -> float:
        return self.fixed_seconds / self.seconds if self.seconds > 0 else 0.0

    def saved_share(self, times: int, growth: float) -> float:
        """Of the time of micro-batch and work around it, where one of so many times the rows takes their place.
        ``growth``: positions for the same tokens, through padding, against those of now. Hand-worked: 1.0 s of which
        0.6 s fixed, nothing around; 4 times the rows, a tenth more positions for the same tokens: 0.6 / 4 + 0.4 * 1.1 =
        0.59 s; 0.41 are saved."""
        now = self.seconds + self.around_seconds
        if now <= 0:
            return 0.0
        then = (self.fixed_seconds + self.around_seconds) / times + (self.seconds - self.fixed_seconds) * growth
        return 1 - then / now


def micro_batch(case: Case) -> MicroBatch | None:
    """None where the fixed part cannot be found: too few steps, tokens that hardly differ, or a sorted order, in which
    a machine that slows down looks like a line over tokens."""
    first, steady = case.first, case.first.steady
    known = first.processed[steady & np.isfinite(first.processed)]
    differ = len(known) > 1 and known.std() > 0
    if differ and abs(np.corrcoef(known, np.arange(len(known)))[0, 1]) > 0.8:
        return None
    counts = np.maximum(first.micro_batches[steady], 1)
    line = batch_time(first.compute_seconds[steady] / counts, first.processed[steady] / counts)
    if line is None:
        return None
    micro_batches = float(counts.mean())
    seconds = float(first.compute_seconds[steady].mean()) / micro_batches
    return MicroBatch(
        tokens=float(first.processed[steady].mean()) / micro_batches,
        seconds=seconds,
        fixed_seconds=min(line.fixed_seconds, seconds),
        around_seconds=float(first.phase("bookkeeping")[steady].mean()) / micro_batches,
    )


def padding_growth(case: Case, times: int, *, grouped: bool = False) -> float:
    """Positions for the same tokens where a micro-batch has so many times the rows, against those of now. 1 with
    packing, or without known lengths. ``grouped``: where examples of like length are put together."""
    sequences, larger = case.account.sequences, case.rows * times
    if not sequences.length_buckets or (sequences.samples or 0) > 1.05 * (sequences.rows or math.inf):
        return 1.0
    if grouped or case.argument("train_sampling_strategy") == "group_by_length":
        then = _grouped(case, larger) or 0.0
    else:
        then = _padding_share(_shuffled(sequences.length_buckets), larger, larger)
    return (1 - (case.account.tokens.padding_share or 0.0)) / (1 - then)


def fitting_times(case: Case, most: int) -> int | None:
    """The largest power of two up to ``most`` by which a micro-batch can grow into idle memory; None: not known."""
    room, each = memory_room(case), position_bytes(case)
    if room is None or each is None:
        return None
    of_one, positions = each
    times = 1
    while 2 * times <= most and (2 * times - 1) * of_one * positions <= room.fillable_bytes:
        times *= 2
    return times


def larger_step(accumulated: int, times: int) -> float:
    """By what the examples of an optimizer step grow, where the rows grow first out of the accumulation."""
    return max(1, accumulated // times) * times / accumulated


def larger_micro_batch(rows: int, accumulated: int, times: int, gain: Gain | None, *, grouped: bool = False) -> Remedy:
    what, costs = f"take {times} times the rows into a micro-batch", "activations of more rows"
    overrides: dict[str, Any] = {"train.per_device_train_batch_size": rows * times}
    kept, growth = max(1, accumulated // times), larger_step(accumulated, times)
    if accumulated > 1:
        overrides["train.gradient_accumulation_steps"] = kept
    if growth > 1:
        costs += f"; a step holds {growth:g} times the examples: an epoch has fewer steps, and the learning rate may "
        costs += "have to grow"
    elif growth == 1:
        what += f", and accumulate {kept}"
        costs += "; the global batch stays the same"
    if grouped:
        overrides["train.train_sampling_strategy"] = "group_by_length"
        what += ", with examples of like length together"
        costs += "; the examples come in another order"
    return Remedy(what, overrides, costs, gain)


def _larger(case: Case, held: MicroBatch, fitting: list[int], *, grouped: bool, enough: float) -> Remedy | None:
    """The fewest rows that give so much of the most that any number of them does; None where they save less than a
    twentieth of the loop."""
    if grouped and not case.can_be_grouped:
        return None
    saved = {times: _saved_seconds(case, held, times, grouped=grouped) for times in fitting}
    least = max(enough * max(saved.values(), default=0.0), 0.0)
    times = next((times for times, seconds in saved.items() if seconds >= least), 1)
    if case.share(saved.get(times, 0.0)) < MATTERS:
        return None
    growth = padding_growth(case, times, grouped=grouped)
    basis = f"what a micro-batch costs by itself is paid once for {times} times the rows"
    if abs(growth - 1) >= 0.01:
        basis += f", which hold {growth:.2f} times the positions for the same tokens on these lengths"
    gain = case.gain(saved[times], basis)
    return larger_micro_batch(case.rows, case.accumulated, times, gain, grouped=grouped)


@rule()
def accumulation(case: Case) -> Verdict:
    """The same global batch in fewer and larger micro-batches would save a twentieth of the loop or more."""
    if case.accumulated < 2:
        return None
    most = fitting_times(case, min(MOST_TIMES, case.accumulated))
    if most is None:
        return abstains("memory is not known by what it is used for", "EfficientTrainerMixin")
    if most < 2:
        return None
    held = micro_batch(case)
    if held is None:
        return abstains(*NO_LINE)
    fitting = [times for times in (2, 4, 8, 16) if times <= most and case.accumulated % times == 0]
    ways = (_larger(case, held, fitting, grouped=grouped, enough=1.0) for grouped in (False, True))
    remedies = [one for one in ways if one is not None]
    if not remedies:
        return None
    shares = [one.gain.share or 0.0 for one in remedies if one.gain is not None]
    if len(remedies) == 2:  # with those of like length together only where that saves a twentieth more
        remedies = remedies[:1] if shares[1] < shares[0] + MATTERS else remedies[::-1]
    gain, room = remedies[0].gain, memory_room(case)
    assert gain is not None
    return finding(
        f"a step accumulates {case.accumulated} micro-batches of {counted(case.rows, 'row')}, "
        f"{share(held.fixed_share)} of whose time does not grow with their tokens, and idle memory holds larger ones",
        [
            ("micro-batches of a step", case.accumulated, "count", _ARGUMENTS),
            ("rows of a micro-batch", case.rows, "count", _ARGUMENTS),
            ("time of a micro-batch", held.seconds, "seconds", "steps.jsonl: phase_seconds"),
            ("of it without any tokens", held.fixed_seconds, "seconds", _FIXED),
            ("Trainer's own work around it", held.around_seconds, "seconds", "steps.jsonl: phase_seconds"),
            ("idle memory at the peak", room.idle_bytes if room else None, "bytes", room.source if room else ""),
        ],
        remedies,
        case.cost(gain.seconds),
        confidence="likely",
    )


@rule()
def small_micro_batch(case: Case) -> Verdict:
    """The fixed part of a micro-batch is 30% of its time or more, and larger ones would save a twentieth of the loop.
    Where they come out of the accumulation, ``accumulation`` says so. A larger step has fewer updates for the same
    tokens, and perhaps more padding."""
    if isinstance(accumulation(case), Finding):
        return None
    wait = core_wait(case)
    if wait is not None and wait.share >= 0.2:
        why = f"other processes held the cores in {share(wait.share)} of the time, which hides what tokens cost"
        return abstains(why, ISOLATE)
    held = micro_batch(case)
    if held is None:
        return abstains(*NO_LINE)
    if held.fixed_share < _MUCH_FIXED:
        return None
    most, examples = fitting_times(case, MOST_TIMES) or MOST_TIMES, case.facts.get("loader", {}).get("rows")
    if examples:  # an epoch still has eight micro-batches
        most = min(most, max(1, int(examples) // (8 * case.rows)))
    fitting = [times for times in (2, 4, 8, 16) if times <= most]
    differ = abs(padding_growth(case, 2, grouped=True) - padding_growth(case, 2)) >= 0.02
    both = (False, True) if differ else (False,)
    ways = (_larger(case, held, fitting, grouped=grouped, enough=0.9) for grouped in both)
    found = [one for one in ways if one is not None]
    if not found:
        return None
    ordered = sorted(found, key=lambda one: -(one.gain.share or 0.0) if one.gain is not None else 0.0)
    sources = _FIXED, "steps.jsonl: phase_seconds", "steps.jsonl: tokens.processed", _ARGUMENTS
    cost = case.cost(case.compute_seconds * held.fixed_share)
    return replace(_small(case.rows, held, sources, ordered, cost), confidence="likely")


def _small(rows: int, held: MicroBatch, sources: tuple[str, ...], remedies: list[Remedy], cost: Cost) -> Finding:
    """``sources``: of the fixed time, the time, the tokens and the rows."""
    part = f"{share(held.fixed_share)} of their time"
    return finding(
        f"micro-batches of {counted(rows, 'row')} spend {part} on what does not grow with their tokens",
        [
            ("fixed time of a micro-batch", held.fixed_seconds, "seconds", sources[0]),
            ("time of a micro-batch", held.seconds, "seconds", sources[1]),
            ("its share", held.fixed_share, "share", sources[0]),
            ("tokens of a micro-batch", held.tokens, "tokens", sources[2]),
            ("rows of a micro-batch", rows, "count", sources[3]),
        ],
        remedies,
        cost,
    )


def saved_by_doubling(case: Case) -> float | None:
    """Share of the loop's time that twice the rows of a micro-batch would save at the same global batch, below 0 where
    their padding costs more; None: not known."""
    held = micro_batch(case) if case.has_steps else None
    if held is None or case.accumulated % 2:
        return None
    return case.share(_saved_seconds(case, held, 2))


def _saved_seconds(case: Case, held: MicroBatch, times: int, *, grouped: bool = False) -> float:
    saved_share = held.saved_share(times, padding_growth(case, times, grouped=grouped))
    saved = (case.compute_seconds + case.phase_seconds("bookkeeping")) * saved_share
    around = case.phase_seconds("optimizer") + case.phase_seconds("logging")
    return saved + around * (1 - 1 / larger_step(case.accumulated, times))


@rule(name="small_micro_batch")
def isolated_small_micro_batch(recipe: IsolatedRecipe) -> Verdict:
    """The fixed part of a micro-batch is 30% of its time or more: larger ones pay it less often."""
    line, schedule = recipe.found.micro_batch, recipe.found.schedule
    if line is None:
        return abstains("micro-batches of other sizes gave no line of time over tokens")
    fixed = min(line.fixed_seconds, line.seconds)
    held = MicroBatch(line.tokens, line.seconds, fixed, 0.0)
    if held.fixed_share < _MUCH_FIXED:
        return None
    # The rows grow until what a micro-batch costs by itself is a tenth of its time.
    varying, times = max(line.seconds - fixed, 1e-9), 2
    while times < MOST_TIMES and fixed / times > 0.1 * (fixed / times + varying):
        times *= 2
    computed = line.seconds * schedule.accumulation
    saved = fixed * schedule.accumulation * (1 - 1 / times)
    growth = larger_step(schedule.accumulation, times)
    if growth > 1:
        around = recipe.found.step_seconds - computed - recipe.taken("data")
        saved += max(0.0, around) * (1 - 1 / growth)
    basis = f"what a micro-batch costs by itself is paid once for {times} times the rows, its tokens as measured"
    gain = recipe.gain(recipe.of_steps(saved), basis)
    remedy = larger_micro_batch(schedule.micro_batch_rows, schedule.accumulation, times, gain)
    if line.doubled_positions is not None and line.doubled_positions > 1.05:
        costs = (
            f"{remedy.costs}; twice the rows hold {line.doubled_positions:.2f} times the positions for the same "
            "tokens, by padding: the gain is not predicted. Examples of like length together, or packing, avoid it"
        )
        remedy = replace(remedy, costs=costs, gain=None)
    sources = f"isolate: {', '.join(line.variants)}", "isolate: as_is", "isolate: as_is", "recipe"
    cost = recipe.cost(recipe.of_steps(fixed * schedule.accumulation))
    return _small(schedule.micro_batch_rows, held, sources, [remedy], cost)
