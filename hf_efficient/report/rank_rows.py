"""The ranks of a run in words: each by itself, and what came of their training together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hf_efficient.records import AcrossRanks, PhaseSkew, RankAccount, RunAccount
from hf_efficient.report.phases import phase_label
from hf_efficient.units import seconds, share, size, usd

__all__ = ["RANK_PHASES", "RankRow", "across_lines", "rank_rows"]

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
            memory=_memory(one),
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


def _memory(rank: RankAccount) -> str:
    if rank.device_peak_allocated_bytes is not None:
        return size(rank.device_peak_allocated_bytes)
    return "" if rank.peak_rss_bytes is None else size(rank.peak_rss_bytes)
