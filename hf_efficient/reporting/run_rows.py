"""Of how many parts a run is made: its starts, and its calls of ``train()``.

The price of an hour of a run, of which each process may have had its own.

Rows of an account about memory and the device: a name, and what is told of it.

The lines of sequences and work on a terminal.

What it took to go on, in words.

What was proven before a run, in lines.

What was planned of a run and what it came to, in words, figure by figure.

The ranks of a run in words: each by itself, and what came of their training together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hf_efficient.records.account import (
    AcrossRanks,
    PhaseSkew,
    PlanAccount,
    PlanFigure,
    Preflight,
    RankAccount,
    RestartAccount,
    RunAccount,
)
from hf_efficient.records.amounts import MemoryAccount, MoneyAccount, SequenceAccount, WorkAccount
from hf_efficient.reporting.labels import category_label, phase_label, tokens_per_second
from hf_efficient.text import count, flops, kilowatt_hours, seconds, share, short_seconds, size, usd


def has_several_trainings(account: RunAccount) -> bool:
    """Whether one of its processes called ``train()`` more than once."""
    return any(len(process.trainings) > 1 for process in account.time.processes)


def told_parts(account: RunAccount) -> str:
    """In words, to be put behind others; nothing for a run of one start and one call."""
    starts = len(account.time.processes)
    told = f", {starts} starts" if starts > 1 else ""
    if has_several_trainings(account):
        told += f", {sum(len(process.trainings) for process in account.time.processes)} calls of train()"
    return told


def hourly_price(money: MoneyAccount) -> str:
    """Of a run whose price is known: ``$2.49/h``, ``$2.49 to $3.10/h``."""
    low, high = money.lowest_price_usd_per_hour, money.highest_price_usd_per_hour
    if low is None or high is None:
        return f"{usd(money.price_usd_per_hour or 0.0)}/h"
    return f"{usd(low)} to {usd(high)}/h"


def price_source(money: MoneyAccount) -> str:
    """Where it comes from; of several prices that of the last start."""
    if money.lowest_price_usd_per_hour is None:
        return money.price_source or ""
    last = f"{usd(money.price_usd_per_hour or 0.0)}/h"
    return f"each start at its own; the last at {last}, {money.price_source}"


def memory_rows(memory: MemoryAccount) -> Iterator[tuple[str, str]]:
    """The peaks; then, where they are known, the categories and the phases, the largest first."""
    yield ("memory", _peaks(memory))
    if memory.categories:
        yield ("", _categories(memory))
    if memory.phase_peak_allocated_bytes:
        phases = sorted(memory.phase_peak_allocated_bytes.items(), key=lambda one: -one[1])
        yield ("", "at most in " + ", ".join(f"{phase_label(name)} {size(peak)}" for name, peak in phases))


def device_rows(account: RunAccount) -> Iterator[tuple[str, str]]:
    """The time on the device, where its events told it."""
    if account.time.device_seconds:
        told = [f"{phase_label(name)} {value:.2f} s" for name, value in account.time.device_seconds.items()]
        yield ("device", ", ".join(told))


def _peaks(memory: MemoryAccount) -> str:
    told = []
    if memory.peak_rss_bytes is not None:
        told.append(f"{size(memory.peak_rss_bytes)} at most in the host's memory")
    if memory.device_peak_allocated_bytes is not None:
        told.append(f"{size(memory.device_peak_allocated_bytes)} allocated on the device")
    if memory.device_peak_reserved_bytes is not None:
        told.append(f"{size(memory.device_peak_reserved_bytes)} reserved")
    if memory.device_allocation_retries:
        told.append(f"{memory.device_allocation_retries} allocation retries")
    return ", ".join(told) or "not known"


def _categories(memory: MemoryAccount) -> str:
    """What is left of the peak is one of them; what is more than the peak comes last."""
    told = [
        f"{category_label(category.name)} {size(category.bytes)}"
        for category in sorted(memory.categories, key=lambda one: -one.bytes)
        if category.bytes > 0
    ]
    more = -sum(category.bytes for category in memory.categories if category.bytes < 0)
    return ", ".join(told) + (f"; {size(more)} of that are not there at the moment of the peak" if more else "")


def work_rows(account: RunAccount) -> list[tuple[str, str]]:
    """Name and text of each line."""
    return [("sequences", _sequences(account.sequences)), ("work", _work(account.work))]


def _sequences(held: SequenceAccount) -> str:
    told = []
    if held.samples is not None:
        rows = f" in {count(held.rows)} rows" if held.rows is not None and held.rows != held.samples else ""
        told.append(f"{count(held.samples)}{rows}")
    if held.samples_per_second is not None:
        told.append(f"{_rate(held.samples_per_second)} per second in the training loop")
    if held.mean_tokens is not None:
        told.append(f"{held.mean_tokens:,.0f} tokens each ({held.shortest_tokens:,} to {held.longest_tokens:,})")
    if held.fill_rate is not None:
        told.append(f"packs {share(held.fill_rate)} full")
    return ", ".join(told) or "not counted"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def _work(work: WorkAccount) -> str:
    """``12.3 TFLOPs (14 TFLOPs computed), MFU 31.2% (HFU 40.1%) of 1.2 TFLOP/s (bf16, a matmul measured here)``."""
    if work.model_flops is None:
        return f"n/a: {work.reason or 'not known'}"
    told = f"{flops(work.model_flops)}FLOPs"
    if work.hardware_flops is not None:
        told += f" ({flops(work.hardware_flops)}FLOPs computed)"
    if work.mfu is None or work.peak_flops_per_second is None:
        return f"{told}, MFU n/a: {work.reason or 'not known'}"
    hfu = "n/a" if work.hfu is None else share(work.hfu)
    of = f"{work.accelerators} x " if work.accelerators > 1 else ""
    source = (work.peak_source or "").split(":")[0]
    of += f"{flops(work.peak_flops_per_second)}FLOP/s ({work.dtype}, {source})"
    return f"{told}, MFU {share(work.mfu)} (HFU {hfu}) of {of}"


def restart_words(restarts: Sequence[RestartAccount]) -> list[str]:
    """A line each, in their order."""
    return [_words(one) for one in restarts]


def _words(one: RestartAccount) -> str:
    cost = f", {usd(one.cost_usd)}" if one.cost_usd is not None else ""
    if one.resumed_after_step is None:
        return f"start {one.process + 1} never came to train: {seconds(one.start_seconds)}{cost}"
    where = f"on from step {one.resumed_after_step}" if one.resumed_after_step else "from the first step again"
    lost = f", {one.steps_again} step{'' if one.steps_again == 1 else 's'} done again" if one.steps_again else ""
    took = f"{seconds(one.start_seconds)} until it trained"
    took += f" and {seconds(one.seconds_again)} of lost steps" if one.steps_again else ""
    return f"start {one.process + 1} {where}{lost}: {took}{cost}"


def preflight_words(found: Preflight) -> list[str]:
    """As far as it came: memory; save and load; disk; and how it went.

    Args:
        found: of the run.
    """
    lines = [_memory(found), _saved(found), _disk(found)]
    took = f"in {seconds(found.wall_seconds)}"
    how = f"passed {took}" if found.failure is None else f"failed {took}, in {found.failure.stage}"
    return [*(line for line in lines if line), how]


def _memory(found: Preflight) -> str:
    if found.batch_rows is None or found.training_peak_bytes is None:
        return ""
    told = f"longest batch {found.batch_rows} x {count(found.batch_tokens or 0)} tokens"
    if found.micro_batches is not None and found.micro_batches != found.recipe_micro_batches:
        told += f" ({found.micro_batches} of {found.recipe_micro_batches} micro-batches a step)"
    told += f": peak {size(found.training_peak_bytes)}"
    if found.memory_bytes is not None:
        told += f" of {size(found.memory_bytes)}"
    if found.evaluation_rows is not None:
        told += f"; {found.evaluation_rows} rows evaluated"
    if found.evaluation_peak_bytes is not None:
        told += f": peak {size(found.evaluation_peak_bytes)}"
    return told


def _saved(found: Preflight) -> str:
    if found.checkpoint_bytes is None or found.save_seconds is None:
        return ""
    told = f"saved {size(found.checkpoint_bytes)} in {short_seconds(found.save_seconds)}"
    if found.load_seconds is None:
        return told if found.failure else f"{told}; not loaded back: train.save_only_model keeps no optimizer"
    told += f", loaded back in {short_seconds(found.load_seconds)}"
    return told if found.failure else f"{told}: {_equal(found)}"


def _equal(found: Preflight) -> str:
    told = f"{found.compared_tensors} tensors of weights and optimizer are equal"
    if found.next_loss is None or found.next_loss_after_load is None:
        return told
    if found.next_loss == found.next_loss_after_load:
        return f"{told}, and the next loss, {found.next_loss:.4g}, bit for bit"
    return f"{told}; the next loss is {found.next_loss_after_load:.9g}, it was {found.next_loss:.9g}"


def _disk(found: Preflight) -> str:
    if found.needed_bytes is None or found.free_bytes is None:
        return ""
    to_come = f"{found.checkpoints_to_come} checkpoint{'' if found.checkpoints_to_come == 1 else 's'} to come"
    return f"{to_come} and the model need {size(found.needed_bytes)}, {size(found.free_bytes)} are free"


_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "tokens_per_second": ("speed with padding", tokens_per_second),
    "step_seconds": ("mean step", short_seconds),
    "training_seconds": ("training loop", seconds),
    "training_cost_usd": ("cost of the training loop", usd),
    "training_energy_joules": ("energy of the GPUs in it", kilowatt_hours),
    "peak_allocated_bytes": ("peak allocated on the device", lambda value: size(round(value))),
    "peak_reserved_bytes": ("peak reserved on the device", lambda value: size(round(value))),
}
_BYTES = "_bytes"


@dataclass(frozen=True)
class PlanRow:
    """One figure.

    Attributes:
        label: what it is.
        predicted, observed: in words; ``n/a`` where not known.
        error: of the prediction, ``+3.1%``, ``exact``; empty where it cannot be told.
    """

    label: str
    predicted: str
    observed: str
    error: str


def plan_rows(plan: PlanAccount) -> list[PlanRow]:
    """The figures of which at least one side is known."""
    return [_row(figure) for figure in _known(plan)]


def plan_notes(plan: PlanAccount) -> list[str]:
    """Why one is not known, or what they are of: each remark once, behind what it is about."""
    about: dict[str, list[str]] = {}
    for figure in _known(plan):
        if figure.note:
            about.setdefault(figure.note, []).append(_told_as(figure.name)[0])
    return [f"{', '.join(labels)}: {note}" for note, labels in about.items()]


def _known(plan: PlanAccount) -> list[PlanFigure]:
    return [one for one in plan.figures if one.predicted is not None or one.observed is not None]


def _row(figure: PlanFigure) -> PlanRow:
    label, tell = _told_as(figure.name)
    predicted, observed = ("n/a" if value is None else tell(value) for value in (figure.predicted, figure.observed))
    return PlanRow(label, predicted, observed, _error(figure))


def _told_as(name: str) -> tuple[str, Callable[[float], str]]:
    if name not in _FIGURES and name.endswith(_BYTES):
        return category_label(name.removesuffix(_BYTES)), lambda value: size(round(value))
    return _FIGURES.get(name, (name.replace("_", " "), "{:,.4g}".format))


def _error(figure: PlanFigure) -> str:
    if figure.relative_error is None:
        return ""
    if figure.predicted == figure.observed:
        return "exact"
    return f"{100 * figure.relative_error + 0.0:+.1f}%".replace("-0.0%", "+0.0%")


RANK_PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "checkpointing")
"""Shown of each rank, where any rank has them."""

_WORTH_A_WORD = 0.01


@dataclass(frozen=True)
class RankRow:
    """One rank.

    Attributes:
        rank: its number.
        where: host and device, as far as they are known.
        steps: optimizer steps.
        training: time of its steps.
        phases: label of a phase to its seconds, those of the device where its events told them.
        waited: for other ranks; empty where that was not told apart.
        memory: peak of its device, or of the host's memory on a CPU.
    """

    rank: str
    where: str
    steps: str
    training: str
    phases: dict[str, str]
    waited: str
    memory: str


def rank_rows(account: RunAccount) -> list[RankRow]:
    """A row per rank, all with the same phases."""
    shown = [name for name in RANK_PHASES if any(_seconds(one, name) for one in account.ranks)]
    return [
        RankRow(
            rank=str(one.rank),
            where=", ".join(part for part in (one.host, one.device) if part),
            steps=f"{one.steps:,}",
            training=seconds(one.training_seconds),
            phases={phase_label(name): seconds(_seconds(one, name)) for name in shown},
            waited=_waited(one),
            memory=_rank_rows_memory(one),
        )
        for one in account.ranks
    ]


def across_lines(account: RunAccount) -> Iterator[str]:
    """Communication, waits for late ranks, and in which phase which rank takes longer than the others."""
    across = account.across
    if across is None:
        return
    training = account.time.training_seconds
    yield from _communication(across, training)
    for skew in across.skew:
        if training > 0 and skew.extra_seconds >= _WORTH_A_WORD * training:
            yield _skew(skew, across)


def _communication(across: AcrossRanks, training: float) -> Iterator[str]:
    if across.exposed_seconds is None or across.late_seconds is None or training <= 0:
        return
    told = "by its device's events" if across.exposed_by == "device" else "by the host's waits"
    covered = across.covered_seconds
    beside = "" if covered is None else f"; {seconds(covered)} are covered by computation (estimated by DDP's own log)"
    yield (
        f"communication: {seconds(across.exposed_seconds)} exposed ({share(across.exposed_seconds / training)} of the "
        f"training{_comma(across.exposed_usd)}), estimated {told} on the rank that waited least; beyond that the ranks "
        f"waited {seconds(across.late_seconds)} each for those that came later{_comma(across.late_usd)}{beside}"
    )


def _skew(skew: PhaseSkew, across: AcrossRanks) -> str:
    where = [skew.host] if skew.host is not None and (across.hosts or 0) > 1 else []
    where += [skew.device] if skew.device is not None and skew.device != "cpu" else []
    others = "the other" if across.ranks == 2 else "the others"
    return (
        f"rank {skew.rank}{' (' + ', '.join(where) + ')' if where else ''} takes {seconds(skew.extra_seconds)} longer "
        f"than {others} in {phase_label(skew.phase)}{' on the device' if skew.on_device else ''}{_comma(skew.usd)}"
    )


def _comma(money: float | None) -> str:
    return "" if money is None else f", {usd(money)}"


def _seconds(rank: RankAccount, name: str) -> float:
    return (rank.device_seconds or {}).get(name) or (rank.phase_seconds or {}).get(name, 0.0)


def _waited(rank: RankAccount) -> str:
    on_device = (rank.device_seconds or {}).get("communication")
    waited = rank.waited_seconds if on_device is None else on_device
    return "" if waited is None else seconds(waited)


def _rank_rows_memory(rank: RankAccount) -> str:
    if rank.device_peak_allocated_bytes is not None:
        return size(rank.device_peak_allocated_bytes)
    return "" if rank.peak_rss_bytes is None else size(rank.peak_rss_bytes)
