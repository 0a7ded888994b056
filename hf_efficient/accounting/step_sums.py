"""Sums of times in whole nanoseconds, in which the clocks count: exact, in whatever order they are taken.

The lines of ``steps.jsonl`` as typed objects: what sums and series take in.

What steps that follow each other add up to.

What the data loader did, added up over the steps of rank 0.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec

from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.estimate.statistics import sum_if_known
from hf_efficient.records.amounts import LoaderAccount
from hf_efficient.records.steps import StepLoader
from hf_efficient.run_dir.reading import Line, LineReader

_V = TypeVar("_V")


def sum_ns(seconds: Iterable[float]) -> int:
    """The sum of times that are whole nanoseconds, written in seconds; exact up to some weeks."""
    return round(math.fsum(seconds) * 1e9)


def phases_ns(parts: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """The sums per phase, in the order in which the phases turn up."""
    return {name: sum_ns(values) for name, values in by_name(parts)}


def by_name(parts: Sequence[Mapping[str, _V]]) -> Iterator[tuple[str, list[_V]]]:
    """Each name in the order in which they turn up, with its values; a part that lacks it has none."""
    for name in dict.fromkeys(itertools.chain.from_iterable(parts)):
        try:
            yield name, [part[name] for part in parts]
        except KeyError:
            yield name, [part[name] for part in parts if name in part]


def add_ns(sums: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the one's phases to the other's."""
    for name, nanoseconds in more.items():
        sums[name] = sums.get(name, 0) + nanoseconds


def in_seconds(nanoseconds: Mapping[str, int]) -> dict[str, float]:
    """The same in seconds."""
    return {name: value / 1e9 for name, value in nanoseconds.items()}


NotFinite = Literal["nan", "inf", "-inf"]
"""How a record holds a figure that is not finite."""


class TokensPart(msgspec.Struct, gc=False):
    """See ``TokenCounts``."""

    processed: int | None
    non_padding: int | None
    loss_bearing: int | None


class SequencesPart(msgspec.Struct, gc=False):
    """See ``SequenceCounts``."""

    rows: int
    documents: int
    shortest: int
    longest: int
    length_buckets: dict[str, int] = msgspec.field(default_factory=dict)


class WorkPart(msgspec.Struct, gc=False):
    """See ``StepWork``."""

    model_flops: int
    hardware_flops: int | None


class MemoryPart(msgspec.Struct, gc=False):
    """See ``StepMemory``."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    phase_peak_allocated_bytes: dict[str, int] = msgspec.field(default_factory=dict)
    allocation_retries: int = 0


class SumLine(Line, gc=False, kw_only=True):
    """What the sums of any rank need of a step record (see ``StepRecord``)."""

    segment: int
    wall_seconds: float
    phase_seconds: dict[str, float]
    tokens: TokensPart
    step: int
    started_at_seconds: float
    sequences: SequencesPart | None = None
    work: WorkPart | None = None
    device_seconds: dict[str, float] | None = None
    waited_seconds: dict[str, float] | None = None


class StepLine(SumLine, gc=False, kw_only=True):
    """What the series of rank 0 need beside it."""

    memory: MemoryPart | None = None
    loader: StepLoader | None = None
    loss: float | NotFinite | None = None
    learning_rate: float | NotFinite | None = None
    grad_norm: float | NotFinite | None = None


def _finite(line: SumLine) -> None:
    for name in ("wall_seconds", "started_at_seconds"):
        if not math.isfinite(getattr(line, name)):
            raise ValueError(f"{name} is {getattr(line, name)}")
    for name, seconds in line.phase_seconds.items():
        if not math.isfinite(seconds):
            raise ValueError(f"phase_seconds.{name} is {seconds}")


@functools.cache
def step_reader(*, detailed: bool) -> LineReader[Any]:
    """Reads StepLines, or SumLines, which take less time."""
    return LineReader(StepLine if detailed else SumLine, "step record", _finite)


def step_seconds(line: SumLine) -> float:
    """Wall of a step without its evaluation and checkpointing."""
    phases = line.phase_seconds
    return line.wall_seconds - (phases.get("evaluation", 0.0) + phases.get("checkpointing", 0.0))


TOKEN_KINDS = ("processed", "non_padding", "loss_bearing")


@dataclass
class SequenceSums:
    """See ``SequenceCounts``: the same over many steps."""

    rows: int = 0
    documents: int = 0
    shortest: int | None = None
    longest: int | None = None
    length_buckets: dict[str, int] = field(default_factory=dict)

    def merge(self, later: SequenceSums) -> None:
        """Add others to these."""
        self.rows += later.rows
        self.documents += later.documents
        self.shortest = min((one for one in (self.shortest, later.shortest) if one is not None), default=None)
        self.longest = max((one for one in (self.longest, later.longest) if one is not None), default=None)
        for bound, count in later.length_buckets.items():
            self.length_buckets[bound] = self.length_buckets.get(bound, 0) + count


@dataclass
class WorkSums:
    """See ``StepWork``: the same over many steps."""

    model_flops: int = 0
    hardware_flops: int | None = 0

    def merge(self, later: WorkSums) -> None:
        """Add others to these."""
        self.model_flops += later.model_flops
        known, more = self.hardware_flops, later.hardware_flops
        self.hardware_flops = None if known is None or more is None else known + more


@dataclass
class StepSums:
    """Sums over steps of one rank.

    Attributes:
        steps: how many.
        wall_ns: of the records.
        phase_ns: per phase.
        tokens: per kind; None where a record does not know it.
        sequences, work: None where a record does not know them.
    """

    steps: int = 0
    wall_ns: int = 0
    phase_ns: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(TOKEN_KINDS, 0))
    sequences: SequenceSums | None = field(default_factory=SequenceSums)
    work: WorkSums | None = field(default_factory=WorkSums)

    @classmethod
    def of(cls, lines: Sequence[SumLine]) -> StepSums:
        """Of some steps, at least one."""
        tokens = [line.tokens for line in lines]
        return cls(
            steps=len(lines),
            wall_ns=sum_ns([line.wall_seconds for line in lines]),
            phase_ns=phases_ns([line.phase_seconds for line in lines]),
            tokens={
                "processed": sum_if_known([part.processed for part in tokens]),
                "non_padding": sum_if_known([part.non_padding for part in tokens]),
                "loss_bearing": sum_if_known([part.loss_bearing for part in tokens]),
            },
            sequences=_sequences(lines),
            work=_work(lines),
        )

    def merge(self, later: StepSums) -> None:
        """Take in the steps that follow."""
        self.steps += later.steps
        self.wall_ns += later.wall_ns
        add_ns(self.phase_ns, later.phase_ns)
        for kind in TOKEN_KINDS:
            known, more = self.tokens[kind], later.tokens[kind]
            self.tokens[kind] = None if known is None or more is None else known + more
        if self.sequences is not None and later.sequences is not None:
            self.sequences.merge(later.sequences)
        else:
            self.sequences = None
        if self.work is not None and later.work is not None:
            self.work.merge(later.work)
        else:
            self.work = None

    @property
    def training_ns(self) -> int:
        """Wall without evaluation and checkpointing."""
        return self.wall_ns - self.phase_ns.get("evaluation", 0) - self.phase_ns.get("checkpointing", 0)

    @property
    def unattributed_ns(self) -> int:
        """What no phase claimed."""
        return self.wall_ns - sum(self.phase_ns.values())


def _sequences(lines: Sequence[SumLine]) -> SequenceSums | None:
    parts = [line.sequences for line in lines if line.sequences is not None]
    if len(parts) < len(lines):
        return None
    return SequenceSums(
        rows=sum([part.rows for part in parts]),
        documents=sum([part.documents for part in parts]),
        shortest=min([part.shortest for part in parts]),
        longest=max([part.longest for part in parts]),
        length_buckets={bound: sum(counts) for bound, counts in by_name([part.length_buckets for part in parts])},
    )


def _work(lines: Sequence[SumLine]) -> WorkSums | None:
    parts = [line.work for line in lines if line.work is not None]
    if len(parts) < len(lines):
        return None
    return WorkSums(sum([part.model_flops for part in parts]), sum_if_known([part.hardware_flops for part in parts]))


LOADER_SECONDS = tuple(name for name in StepLoader.__struct_fields__ if name.endswith("_seconds"))


@dataclass
class LoaderSums:
    """See ``StepLoader``: the same over many steps.

    Attributes:
        steps: whose loader was watched.
        epochs: of them, those in which an epoch was started.
        batches, bytes, fetched, read_bytes, rows: as there.
        asked: batches that were asked for while workers loaded.
        ready: those that lay ready then.
        ns: the times, by name.
    """

    steps: int = 0
    epochs: int = 0
    batches: int = 0
    bytes: int = 0
    fetched: int = 0
    read_bytes: int = 0
    asked: int = 0
    ready: int = 0
    rows: int | None = 0
    ns: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[StepLine]) -> LoaderSums:
        """Of some steps; those whose loader was not watched are left out."""
        parts = [line.loader for line in lines if line.loader is not None]
        with_workers = [part for part in parts if part.ready is not None]
        return cls(
            steps=len(parts),
            epochs=sum([part.start_seconds > 0 for part in parts]),
            batches=sum([part.batches for part in parts]),
            bytes=sum([part.bytes for part in parts]),
            fetched=sum([part.fetched for part in parts]),
            read_bytes=sum([part.read_bytes for part in parts]),
            asked=sum([part.batches for part in with_workers]),
            ready=sum([part.ready or 0 for part in with_workers]),
            rows=sum_if_known([part.rows for part in parts]),
            ns={name: sum_ns(map(read, parts)) for name, read in _READ_SECONDS.items()} if parts else {},
        )

    def merge(self, later: LoaderSums) -> None:
        """Take in the steps that follow."""
        for name in ("steps", "epochs", "batches", "bytes", "fetched", "read_bytes", "asked", "ready"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.rows = None if self.rows is None or later.rows is None else self.rows + later.rows
        add_ns(self.ns, later.ns)

    @property
    def mean_ready(self) -> float | None:
        """Batches that lay ready when one was asked for; None where no workers loaded."""
        return self.ready / self.asked if self.asked else None


_READ_SECONDS = {name: attrgetter(name) for name in LOADER_SECONDS}


def loader_account(processes: Sequence[ProcessSpans], sums: Sequence[LoaderSums]) -> LoaderAccount | None:
    """The loader of rank 0; None where it was watched in no step.

    Args:
        processes: of rank 0; the last one that stated its loader is told.
        sums: of its ``train()`` calls.
    """
    whole = LoaderSums()
    for one in sums:
        whole.merge(one)
    if not whole.steps:
        return None
    facts: Mapping[str, Any] = next((one.facts["loader"] for one in reversed(processes) if "loader" in one.facts), {})
    return LoaderAccount(
        steps=whole.steps,
        epochs=whole.epochs,
        batches=whole.batches,
        rows=whole.rows,
        bytes=whole.bytes,
        fetched=whole.fetched,
        read_bytes=whole.read_bytes,
        mean_ready=whole.mean_ready,
        workers=facts.get("workers"),
        prefetch_factor=facts.get("prefetch_factor"),
        persistent_workers=facts.get("persistent_workers"),
        pin_memory=facts.get("pin_memory"),
        **in_seconds(whole.ns),
    )
