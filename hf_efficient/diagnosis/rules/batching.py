"""How much padding other batches of the same lengths would have.

What a micro-batch costs by itself, and what larger ones would save.

Positions that are padding.

Gradients accumulated over small micro-batches, though memory lies idle for larger ones.

Micro-batches so small that what each costs by itself outweighs its tokens.

Larger micro-batches: so many times the rows, first out of the accumulation, which changes nothing.

Micro-batches so small that what each costs by itself outweighs its tokens, from micro-batches of other sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_efficient.diagnosis.case import Case, Column
from hf_efficient.diagnosis.rule import MATTERS, NO_STEPS, SOURCE, Verdict, abstains, cost, gain
from hf_efficient.diagnosis.rules.machine import core_wait
from hf_efficient.diagnosis.rules.memory import memory_room, position_bytes
from hf_efficient.estimate.throughput import batch_time
from hf_efficient.records.findings import Abstention, Evidence, Finding, Remedy
from hf_efficient.records.isolation import Isolation, MicroBatchLine
from hf_efficient.text import share

_MEGA_BATCHES = 50
_MOST = 50_000
_SEED = 0


def grouped_padding_share(length_buckets: Mapping[str, int], rows: int | None) -> float | None:
    """Share of padding where examples of like length share a batch.

    As transformers' sampler does: shuffled, in stretches of fifty batches, each sorted by length. A document of a
    bucket is taken to lie between the bound before and its own, evenly.

    Args:
        length_buckets: upper bound in tokens, as text, to documents.
        rows: of a batch.

    Returns:
        None without lengths or rows.
    """
    if not length_buckets or not rows:
        return None
    lengths = _shuffled(length_buckets)
    stretch = rows * min(_MEGA_BATCHES, max(1, len(lengths) // (rows * 4)))
    return _padding_share(lengths, rows, stretch)


def mixed_padding_share(length_buckets: Mapping[str, int], rows: int | None) -> float | None:
    """Share of padding where batches are drawn as they come.

    Args:
        length_buckets, rows: as of ``grouped_padding_share``.

    Returns:
        None without lengths or rows.
    """
    if not length_buckets or not rows:
        return None
    return _padding_share(_shuffled(length_buckets), rows, rows)


def _shuffled(length_buckets: Mapping[str, int]) -> np.ndarray:
    lengths = _lengths(length_buckets)
    np.random.default_rng(_SEED).shuffle(lengths)
    return lengths


def _padding_share(lengths: np.ndarray, rows: int, stretch: int) -> float:
    """Of batches of so many rows, each stretch sorted before it is cut into them."""
    held = positions = 0.0
    for start in range(0, len(lengths), stretch):
        ordered = np.sort(lengths[start : start + stretch])[::-1]
        for first in range(0, len(ordered), rows):
            batch = ordered[first : first + rows]
            held += float(batch.sum())
            positions += float(batch.max()) * len(batch)
    return 1 - held / positions


def _lengths(buckets: Mapping[str, int]) -> np.ndarray:
    counts = sorted((int(bound), count) for bound, count in buckets.items())
    total = sum(count for _, count in counts)
    keep = min(1.0, _MOST / total)
    found = []
    for bound, count in counts:
        low = bound / 2 ** (1 / 4)
        found.append(np.linspace(low, bound, max(1, round(count * keep))))
    return np.concatenate(found)


MOST_TIMES = 16
_SORTED = 0.8


@dataclass(frozen=True)
class MicroBatch:
    """The mean micro-batch of rank 0 after warm-up.

    Attributes:
        rows: asked for by ``per_device_train_batch_size``.
        accumulated: micro-batches of a step.
        tokens: positions, padding included.
        seconds: of forward and backward.
        fixed_seconds: of them, what does not grow with the tokens.
        around_seconds: of the Trainer's own work between micro-batches, which larger ones pay less often too.
    """

    rows: int
    accumulated: int
    tokens: float
    seconds: float
    fixed_seconds: float
    around_seconds: float

    @property
    def fixed_share(self) -> float:
        """Of its own time."""
        return self.fixed_seconds / self.seconds if self.seconds > 0 else 0.0

    def saved_share(self, times: int, growth: float) -> float:
        """Of the time of micro-batch and work around it, where one of so many times the rows takes their place.

        Hand-worked: 1.0 s of which 0.6 s fixed, nothing around; 4 times the rows, a tenth more positions for the same
        tokens: 0.6 / 4 + 0.4 * 1.1 = 0.59 s; 0.41 are saved.

        Args:
            times: the rows.
            growth: positions for the same tokens, through padding, against those of now.
        """
        now = self.seconds + self.around_seconds
        if now <= 0:
            return 0.0
        then = (self.fixed_seconds + self.around_seconds) / times + (self.seconds - self.fixed_seconds) * growth
        return 1 - then / now


def micro_batch(case: Case) -> MicroBatch | None:
    """None where the fixed part cannot be told.

    Too few steps; their tokens hardly differ; or they come sorted, so that a machine that slows down or speeds up looks
    like a line over tokens (examples grouped by length, in a run of few stretches).
    """
    first = case.first
    if first is None:
        return None
    steady = first.steady
    if _sorted(first.processed[steady]):
        return None
    counts = np.maximum(first.micro_batches[steady], 1)
    line = batch_time(first.compute_seconds[steady] / counts, first.processed[steady] / counts)
    if line is None:
        return None
    micro_batches = float(counts.mean())
    seconds = float(first.compute_seconds[steady].mean()) / micro_batches
    return MicroBatch(
        rows=int(case.argument("per_device_train_batch_size") or 1),
        accumulated=int(case.argument("gradient_accumulation_steps") or 1),
        tokens=float(first.processed[steady].mean()) / micro_batches,
        seconds=seconds,
        fixed_seconds=min(line.fixed_seconds, seconds),
        around_seconds=float(first.phase("bookkeeping")[steady].mean()) / micro_batches,
    )


def _sorted(tokens: Column) -> bool:
    known = tokens[np.isfinite(tokens)]
    if len(known) < 2 or known.std() == 0:
        return False
    return bool(abs(np.corrcoef(known, np.arange(len(known)))[0, 1]) > _SORTED)


def padding_growth(case: Case, rows: int, times: int, *, grouped: bool = False) -> float:
    """Positions for the same tokens where a micro-batch has so many times the rows, against those of now.

    1 where rows hold more than one document (packing), or the lengths are not known.

    Args:
        case: the run.
        rows: of now.
        times: how many times the rows.
        grouped: whether examples of like length are put together, as they are not now.
    """
    sequences = case.account.sequences
    packed = bool(sequences.rows) and (sequences.samples or 0) > 1.05 * (sequences.rows or 0)
    grouped = grouped or case.argument("train_sampling_strategy") == "group_by_length"
    share = grouped_padding_share if grouped else mixed_padding_share
    then = None if packed else share(sequences.length_buckets, rows * times)
    if then is None:
        return 1.0
    return (1 - (case.account.tokens.padding_share or 0.0)) / (1 - then)


def fitting_times(case: Case, most: int) -> int | None:
    """The largest power of two by which the rows of a micro-batch can grow into idle memory; 1: they cannot.

    None where the memory is not known.

    Args:
        case: the run.
        most: no more than this.
    """
    room, each = memory_room(case), position_bytes(case)
    if room is None or each is None:
        return None
    of_one, positions = each
    times = 1
    while 2 * times <= most and (2 * times - 1) * of_one * positions <= room.fillable_bytes:
        times *= 2
    return times


_TOO_MUCH = 0.15


def padding_waste(case: Case) -> Verdict:
    """A seventh of the positions or more is padding: what grouping by length or packing would give on these lengths."""
    first, padded = case.first, case.account.tokens.padding_share
    if first is None:
        return abstains("padding_waste", NO_STEPS)
    if padded is None:
        return abstains("padding_waste", "tokens are not counted", "EfficientTrainerMixin in place of the callback")
    if padded < _TOO_MUCH:
        return None
    computed = float(first.compute_seconds.sum()) * case.loop_seconds / float(first.wall_seconds.sum())
    wasted = computed * padded
    sequences = case.account.sequences
    evidence = [
        Evidence("padding", padded, "share", "run.json: tokens.padding_share"),
        Evidence("time in forward and backward", computed, "seconds", "steps.jsonl: phase_seconds"),
    ]
    for name in ("shortest_tokens", "mean_tokens", "longest_tokens"):
        value = getattr(sequences, name)
        if value is not None:
            evidence.append(Evidence(name.replace("_", " "), value, "tokens", f"run.json: sequences.{name}"))
    return Finding(
        rule="padding_waste",
        title=f"{share(padded)} of the positions that are computed are padding",
        severity="warning" if case.share(wasted) >= 0.1 else "info",
        confidence="measured",
        evidence=evidence,
        cost=case.cost(wasted),
        remedies=_remedies(case, computed, padded),
    )


def _remedies(case: Case, computed: float, padded: float) -> list[Remedy]:
    """Grouping keeps the training what it is; packing changes what a step holds."""
    found = []
    grouped = grouped_padding_share(case.account.sequences.length_buckets, case.argument("per_device_train_batch_size"))
    if grouped is not None and case.can_be_grouped and grouped < padded:
        left = (1 - padded) / (1 - grouped)  # positions for the same tokens, against those of now
        basis = f"{share(grouped)} of padding on these lengths, time by positions computed"
        overrides: dict[str, Any] = {"train.train_sampling_strategy": "group_by_length"}
        costs = "the examples come in another order, those of like length together"
        gain = case.gain(computed * (1 - left), basis)
        found.append(Remedy("put examples of like length into a batch", overrides, costs, gain))
    is_sft = case.argument("packing") is False and case.argument("max_length") is not None
    if is_sft and (case.recipe is None or case.recipe.get("method", "sft") == "sft"):
        overrides = {"train.packing": True}
        gain = case.gain(computed * padded, "no padding, time by positions computed")
        costs = "a step holds more examples, so that an epoch has fewer steps"
        found.append(Remedy("pack examples into rows of the full length", overrides, costs, gain))
    return found


_GROUPED = {"train.train_sampling_strategy": "group_by_length"}


def accumulation(case: Case) -> Verdict:
    """The same global batch in fewer and larger micro-batches would save a twentieth of the loop or more."""
    accumulated = int(case.argument("gradient_accumulation_steps") or 1)
    if case.first is None:
        return abstains("accumulation", NO_STEPS)
    if accumulated < 2:
        return None
    most = fitting_times(case, min(MOST_TIMES, accumulated))
    if most is None:
        return abstains("accumulation", "memory is not known by what it is used for", "EfficientTrainerMixin")
    if most < 2:
        return None
    held = micro_batch(case)
    if held is None:
        why = "what a micro-batch costs by itself cannot be told: too few steps, or their tokens hardly differ"
        return abstains("accumulation", why, "hf-efficient diagnose RECIPE --isolate")
    remedies = _accumulation_remedies(case, held, most)
    if not remedies:
        return None
    gain = remedies[0].gain
    assert gain is not None
    return Finding(
        rule="accumulation",
        title=f"a step accumulates {accumulated} micro-batches of {_rows(held.rows)}, {share(held.fixed_share)} of "
        "whose time does not grow with their tokens, and idle memory holds larger ones",
        severity="warning",
        confidence="likely",
        evidence=_evidence(case, held),
        cost=case.cost(gain.seconds),
        remedies=remedies,
    )


def _evidence(case: Case, held: MicroBatch) -> list[Evidence]:
    line = "steps.jsonl: forward and backward over tokens"
    found = [
        Evidence("micro-batches of a step", held.accumulated, "count", "spans.jsonl: settings.arguments"),
        Evidence("rows of a micro-batch", held.rows, "count", "spans.jsonl: settings.arguments"),
        Evidence("time of a micro-batch", held.seconds, "seconds", "steps.jsonl: phase_seconds"),
        Evidence("of it without any tokens", held.fixed_seconds, "seconds", line),
        Evidence("Trainer's own work around it", held.around_seconds, "seconds", "steps.jsonl: phase_seconds"),
    ]
    room = memory_room(case)
    if room is not None:
        found.append(Evidence("idle memory at the peak", room.idle_bytes, "bytes", room.source))
    return found


def _accumulation_remedies(case: Case, held: MicroBatch, most: int) -> list[Remedy]:
    """As the examples come, and with those of like length together, where that saves a twentieth more."""
    plain, grouped = _remedy(case, held, most, grouped=False), _remedy(case, held, most, grouped=True)
    both = [one for one in (plain, grouped) if one is not None]
    if plain is not None and grouped is not None:
        shares = [one.gain.share or 0.0 for one in both if one.gain is not None]
        if shares[1] < shares[0] + MATTERS:
            return [plain]
        return [grouped, plain]
    return both


def _remedy(case: Case, held: MicroBatch, most: int, *, grouped: bool) -> Remedy | None:
    first = case.first
    assert first is not None
    if grouped and not case.can_be_grouped:
        return None
    choices = [times for times in (2, 4, 8, 16) if times <= most and held.accumulated % times == 0]
    by_saved = {
        times: held.saved_share(times, padding_growth(case, held.rows, times, grouped=grouped)) for times in choices
    }
    best = max(by_saved, key=lambda times: by_saved[times], default=1)
    within = float((first.compute_seconds + first.phase("bookkeeping")).sum()) / float(first.wall_seconds.sum())
    saved = by_saved.get(best, 0.0) * within * case.loop_seconds
    if case.share(saved) < MATTERS:
        return None
    overrides: dict[str, Any] = {
        "train.per_device_train_batch_size": held.rows * best,
        "train.gradient_accumulation_steps": held.accumulated // best,
    }
    what = f"take {best} times the rows into a micro-batch, and accumulate {held.accumulated // best}"
    costs = "activations of more rows; the global batch stays the same"
    if grouped:
        overrides |= _GROUPED
        what += ", with examples of like length together"
        costs += "; the examples come in another order"
    growth = padding_growth(case, held.rows, best, grouped=grouped)
    basis = f"what a micro-batch costs by itself is paid once for {best} times the rows"
    if abs(growth - 1) >= 0.01:
        basis += f", which hold {growth:.2f} times the positions for the same tokens on these lengths"
    return Remedy(what, overrides, costs, case.gain(saved, basis))


def _rows(rows: int) -> str:
    return f"{rows} row" if rows == 1 else f"{rows} rows"


_SMALL_MICRO_BATCH_TOO_MUCH = 0.3
_BUSY = 0.2
_LEAST_BATCHES = 8
_ISOLATE = "hf-efficient diagnose RECIPE --isolate"


def small_micro_batch(case: Case) -> Verdict:
    """The fixed part of a micro-batch is 30% of its time or more, and larger ones would save a twentieth of the loop.

    Where they can be had out of the accumulation, ``accumulation`` says so. A larger step has fewer optimizer steps for
    the same tokens, and, unless examples are put together by length, more padding.
    """
    if case.first is None:
        return abstains("small_micro_batch", NO_STEPS)
    if isinstance(accumulation(case), Finding):
        return None
    wait = core_wait(case)
    if wait is not None and wait.share >= _BUSY:
        why = f"other processes held the cores in {share(wait.share)} of the time, which a line over tokens cannot tell"
        return abstains("small_micro_batch", why, _ISOLATE)
    held = micro_batch(case)
    if held is None:
        why = "what a micro-batch costs by itself cannot be told: too few steps, or their tokens hardly differ"
        return abstains("small_micro_batch", why, _ISOLATE)
    if held.fixed_share < _SMALL_MICRO_BATCH_TOO_MUCH:
        return None
    remedies = _small_micro_batch_remedies(case, held)
    if not remedies:
        return None
    return Finding(
        rule="small_micro_batch",
        title=f"micro-batches of {held.rows} {'row' if held.rows == 1 else 'rows'} spend {share(held.fixed_share)} of "
        "their time on what does not grow with their tokens",
        severity="warning",
        confidence="likely",
        evidence=_small_micro_batch_evidence(held),
        cost=case.cost(_of_the_loop(case, held.fixed_share)),
        remedies=remedies,
    )


def _small_micro_batch_evidence(held: MicroBatch) -> list[Evidence]:
    line = "steps.jsonl: forward and backward over tokens"
    return [
        Evidence("fixed time of a micro-batch", held.fixed_seconds, "seconds", line),
        Evidence("time of a micro-batch", held.seconds, "seconds", "steps.jsonl: phase_seconds"),
        Evidence("its share", held.fixed_share, "share", line),
        Evidence("tokens of a micro-batch", held.tokens, "tokens", "steps.jsonl: tokens.processed"),
        Evidence("rows of a micro-batch", held.rows, "count", "spans.jsonl: settings.arguments"),
    ]


def _small_micro_batch_remedies(case: Case, held: MicroBatch) -> list[Remedy]:
    """With examples of like length together, and as they come; the one that gives more first."""
    both = [_small_micro_batch_remedy(case, held, grouped=grouped) for grouped in (False, True)]
    found = [one for one in both if one is not None]
    return sorted(found, key=lambda one: -(one.gain.share or 0.0) if one.gain is not None else 0.0)


def _small_micro_batch_remedy(case: Case, held: MicroBatch, *, grouped: bool) -> Remedy | None:
    """None where no size saves a twentieth, or grouping would change nothing."""
    if grouped and (not case.can_be_grouped or _alike(case, held)):
        return None
    most = min(fitting_times(case, MOST_TIMES) or MOST_TIMES, _by_the_data(case, held))
    saved = {
        times: _saved_seconds(case, held, times, padding_growth(case, held.rows, times, grouped=grouped))
        for times in (2, 4, 8, 16)
        if times <= most
    }
    best = _smallest_that_does(saved)
    if best is None or case.share(saved[best]) < MATTERS:
        return None
    kept = max(1, held.accumulated // best)
    overrides: dict[str, Any] = {"train.per_device_train_batch_size": held.rows * best}
    if held.accumulated > 1:
        overrides["train.gradient_accumulation_steps"] = kept
    what, costs = f"take {best} times the rows into a micro-batch", "activations of more rows"
    larger = kept * best / held.accumulated
    if larger > 1:
        costs += f"; a step holds {larger:g} times the examples: an epoch has fewer steps, and the learning rate may "
        costs += "want to grow"
    if grouped:
        overrides["train.train_sampling_strategy"] = "group_by_length"
        what += ", with examples of like length together"
        costs += "; the examples come in another order"
    return Remedy(what, overrides, costs, case.gain(saved[best], _basis(case, held, best, grouped)))


def _basis(case: Case, held: MicroBatch, times: int, grouped: bool) -> str:
    growth = padding_growth(case, held.rows, times, grouped=grouped)
    told = f"what a micro-batch costs by itself is paid once for {times} times the rows"
    if abs(growth - 1) < 0.01:
        return told
    return f"{told}, which hold {growth:.2f} times the positions for the same tokens on these lengths"


def _alike(case: Case, held: MicroBatch) -> bool:
    """Whether grouping by length would leave the padding what it is."""
    return abs(padding_growth(case, held.rows, 2) - padding_growth(case, held.rows, 2, grouped=True)) < 0.02


def _by_the_data(case: Case, held: MicroBatch) -> int:
    """So many times the rows that an epoch still has eight micro-batches; ``MOST_TIMES`` of data of unknown length."""
    examples = case.facts.get("loader", {}).get("rows")
    return MOST_TIMES if not examples else max(1, int(examples) // (_LEAST_BATCHES * held.rows))


def _smallest_that_does(saved: dict[int, float]) -> int | None:
    """The fewest rows that give nine tenths of the most that any number of them does."""
    most = max(saved.values(), default=0.0)
    return next((times for times, seconds in saved.items() if seconds > 0 and seconds >= 0.9 * most), None)


def _saved_seconds(case: Case, held: MicroBatch, times: int, growth: float) -> float:
    """Over the run: of the micro-batches, and of the optimizer's and the logs' time where a step holds more."""
    first = case.first
    assert first is not None
    saved = _of_the_loop(case, held.saved_share(times, growth), "bookkeeping")
    larger = max(1, held.accumulated // times) * times / held.accumulated
    around = sum(float(first.phase(name).sum()) for name in ("optimizer", "logging"))
    return saved + case.loop_seconds * around / float(first.wall_seconds.sum()) * (1 - 1 / larger)


def _of_the_loop(case: Case, part: float, *others: str) -> float:
    """Seconds over the run of a part of forward and backward, and of other phases."""
    first = case.first
    assert first is not None
    within = float(first.compute_seconds.sum()) + sum(float(first.phase(name).sum()) for name in others)
    return case.loop_seconds * within / float(first.wall_seconds.sum()) * part


_MOST_TIMES = 16


@dataclass(frozen=True)
class LargerMicroBatch:
    """A change of the recipe.

    Attributes:
        times: the rows, a power of two.
        growth: times the examples that an optimizer step holds.
        overrides: by dotted key.
        costs: in words.
    """

    times: int
    growth: float
    overrides: dict[str, Any]
    costs: str


def larger_micro_batch(rows: int, accumulated: int, fixed: float, computed: float) -> LargerMicroBatch:
    """So many times the rows that what a micro-batch costs by itself is a tenth of its time.

    Args:
        rows: of a micro-batch.
        accumulated: micro-batches of an optimizer step.
        fixed: seconds that a micro-batch takes before it holds anything.
        computed: seconds of its forward and backward.
    """
    times = _times(fixed, computed)
    overrides: dict[str, Any] = {"train.per_device_train_batch_size": rows * times}
    kept = max(1, accumulated // times)
    if accumulated > 1:
        overrides["train.gradient_accumulation_steps"] = kept
    costs = "activations of more rows"
    growth = kept * times / accumulated
    if growth > 1:
        costs += f"; a step holds {growth:g} times the examples: an epoch has fewer steps, and the learning rate may "
        costs += "want to grow"
    return LargerMicroBatch(times, growth, overrides, costs)


def _times(fixed: float, computed: float) -> int:
    """A power of two."""
    varying = max(computed - fixed, 1e-9)
    times = 2
    while times < _MOST_TIMES and fixed / times > 0.1 * (fixed / times + varying):
        times *= 2
    return times


_SMALL_MICRO_BATCH_TOO_MUCH_2 = 0.3
_MUCH_PADDING = 1.05


def small_micro_batch_small_micro_batch(found: Isolation) -> Finding | Abstention | None:
    """The fixed part of a micro-batch is 30% of its time or more: larger ones pay it less often."""
    line = found.micro_batch
    if line is None:
        return Abstention("small_micro_batch", "micro-batches of other sizes gave no line of time over tokens")
    fixed = min(line.fixed_seconds, line.seconds)
    taken = fixed / line.seconds if line.seconds > 0 else 0.0
    if taken < _SMALL_MICRO_BATCH_TOO_MUCH_2:
        return None
    rows = found.schedule.micro_batch_rows
    source = f"{SOURCE}: {', '.join(line.variants)}"
    return Finding(
        rule="small_micro_batch",
        title=f"micro-batches of {rows} {'row' if rows == 1 else 'rows'} spend {share(taken)} of their time on what "
        "does not grow with their tokens",
        severity="warning",
        confidence="measured",
        evidence=[
            Evidence("fixed time of a micro-batch", fixed, "seconds", source),
            Evidence("time of a micro-batch", line.seconds, "seconds", f"{SOURCE}: as_is"),
            Evidence("its share", taken, "share", source),
            Evidence("tokens of a micro-batch", line.tokens, "tokens", f"{SOURCE}: as_is"),
            Evidence("rows of a micro-batch", rows, "count", "recipe"),
        ],
        cost=cost(found, fixed * found.schedule.accumulation),
        remedies=[_small_micro_batch_remedy_2(found, line, fixed)],
    )


def _small_micro_batch_remedy_2(found: Isolation, line: MicroBatchLine, fixed: float) -> Remedy:
    schedule = found.schedule
    change = larger_micro_batch(schedule.micro_batch_rows, schedule.accumulation, fixed, line.seconds)
    what = f"take {change.times} times the rows into a micro-batch"
    padded = line.doubled_positions
    if padded is not None and padded > _MUCH_PADDING:
        costs = (
            f"{change.costs}; twice the rows hold {padded:.2f} times the positions for the same tokens, by padding, "
        )
        costs += "so that the gain is not predicted: examples of like length together, or packing, avoid it"
        return Remedy(what, change.overrides, costs)
    saved = fixed * schedule.accumulation * (1 - 1 / change.times)
    if change.growth > 1:
        data = found.part("data")
        waits = data.seconds or 0.0 if data is not None else 0.0
        saved += max(0.0, found.step_seconds - line.seconds * schedule.accumulation - waits) * (1 - 1 / change.growth)
    basis = f"what a micro-batch costs by itself is paid once for {change.times} times the rows, its tokens as measured"
    return Remedy(what, change.overrides, change.costs, gain(found, saved, basis))
