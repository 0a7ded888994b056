"""What the rules see of a run: its account, its settings, and its steps as columns.

The step records of one rank as columns.

What the sampler saw of the machine while the training loop ran.

A run's folder to the case that the rules see.

The breakdown of the trace that a run's profiler left.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import yaml

from hf_efficient.accounting.account import RUN_JSON, build_account, read_account
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.accounting.run_records import RunReader, RunRecords
from hf_efficient.accounting.series import build_series
from hf_efficient.accounting.step_sums import StepLine
from hf_efficient.errors import OutputError
from hf_efficient.estimate.statistics import warm_up_count
from hf_efficient.recipe.writing import read_resolved
from hf_efficient.records.account import RunAccount
from hf_efficient.records.findings import Cost, Gain
from hf_efficient.records.series import Band, RunSeries
from hf_efficient.records.trace import DeviceBreakdown, TraceBreakdown
from hf_efficient.run_dir.reading import Block, LineReader, rank_files
from hf_efficient.trace.breakdown import trace_breakdown

Column = npt.NDArray[np.float64]

FEWEST_STEPS = 8


@dataclass(frozen=True)
class StepColumns:
    """Steps of one rank, a row per optimizer step, in the order written; NaN: not known.

    Attributes:
        segment: number of the ``train()`` call.
        step: the Trainer's number.
        wall_seconds: with evaluation and checkpointing.
        phase_seconds: by phase; 0 where it did not occur.
        device_seconds: by phase on the device; empty without device events.
        micro_batches, rows, processed, non_padding, loss_bearing: sums over the step's micro-batches.
        loader: by name, what is known of the data loader (see ``StepLoader``); empty where nothing is.
        cpu_seconds: CPU time of the process; NaN in a run of one process.
        waited_seconds: by opaque phase, the time in it in which the rank waited for others; empty where it never did.
        loss, learning_rate, grad_norm: as logged.
        peak_allocated_bytes, peak_reserved_bytes, allocation_retries: of the device.
    """

    segment: Column
    step: Column
    wall_seconds: Column
    phase_seconds: Mapping[str, Column]
    device_seconds: Mapping[str, Column]
    micro_batches: Column
    rows: Column
    processed: Column
    non_padding: Column
    loss_bearing: Column
    loader: Mapping[str, Column]
    cpu_seconds: Column
    loss: Column
    learning_rate: Column
    grad_norm: Column
    peak_allocated_bytes: Column
    peak_reserved_bytes: Column
    allocation_retries: Column
    waited_seconds: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)

    def phase(self, name: str) -> Column:
        """Seconds of a phase, step by step."""
        return self.phase_seconds.get(name, np.zeros(len(self)))

    def own(self, name: str) -> Column:
        """Seconds of a phase, step by step, without those in which it is known that the rank waited for others."""
        waited = self.waited_seconds.get(name)
        return self.phase(name) if waited is None else self.phase(name) - np.nan_to_num(waited)

    @cached_property
    def step_seconds(self) -> Column:
        """Wall without evaluation and checkpointing."""
        return self.wall_seconds - self.phase("evaluation") - self.phase("checkpointing")

    @cached_property
    def compute_seconds(self) -> Column:
        """Forward, backward and what waits for the device in between."""
        named = ("forward", "backward", "device_wait", "forward_backward")
        return np.sum([self.phase(name) for name in named], axis=0)

    @cached_property
    def steady(self) -> npt.NDArray[np.bool_]:
        """Which steps are not of the warm-up of their ``train()`` call."""
        found = np.ones(len(self), dtype=bool)
        for segment in np.unique(self.segment):
            places = np.flatnonzero(self.segment == segment)
            found[places[: warm_up_count(len(places))]] = False
        return found


@dataclass(frozen=True)
class Pause:
    """An evaluation or a save.

    Attributes:
        step: optimizer steps done before it.
        seconds: wall.
    """

    step: int
    seconds: float


@dataclass(frozen=True)
class Case:
    """A run to be diagnosed.

    Attributes:
        directory: the folder of its records, for messages.
        account: where everything went.
        steps: by rank; at most the last that 16 MiB of records hold.
        facts: what the run said of itself, by topic; later processes over earlier ones.
        evaluations, saves: inside and outside the training loop.
        series: over its time; None where only ``run.json`` was kept.
        recipe: its values by dotted key; None without one.
    """

    directory: str
    account: RunAccount
    steps: Mapping[int, StepColumns]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    evaluations: Sequence[Pause] = ()
    saves: Sequence[Pause] = ()
    series: RunSeries | None = None
    recipe: Mapping[str, Any] | None = None

    @property
    def first(self) -> StepColumns | None:
        """The steps of rank 0; None without any."""
        found = self.steps.get(0)
        return found if found is not None and len(found) else None

    @property
    def is_short(self) -> bool:
        """Whether so few steps are recorded that a share of their time says little."""
        return self.account.steps.count < FEWEST_STEPS

    @cached_property
    def loop_seconds(self) -> float:
        """Of the training loop of rank 0, evaluations and saves included."""
        first = self.first
        if first is None:
            return 0.0
        held = float(first.wall_seconds.sum())
        recorded = self.account.steps.count
        return held * recorded / len(first) if recorded > len(first) else held

    def phase_seconds(self, name: str) -> float:
        """Of a phase within the training loop, on rank 0."""
        first = self.first
        if first is None:
            return 0.0
        return float(first.phase(name).sum()) * max(1.0, self.account.steps.count / len(first))

    def argument(self, name: str, default: Any = None) -> Any:
        """A field of the run's ``TrainingArguments``; the default where it is not known."""
        return self.settings("arguments").get(name, default)

    def settings(self, part: str) -> Mapping[str, Any]:
        """A part of the topic ``settings``, as ``callbacks/settings.py`` states it; empty where it is not known."""
        found = self.facts.get("settings", {}).get(part)
        return found if isinstance(found, Mapping) else {}

    @property
    def on_cuda(self) -> bool:
        """Whether it trained on a CUDA device."""
        return self.settings("device").get("type") == "cuda"

    @property
    def is_of_preferences(self) -> bool:
        """Whether it trained on pairs of answers: its arguments are a ``DPOConfig``'s."""
        return self.argument("precompute_ref_log_probs") is not None

    @property
    def can_be_grouped(self) -> bool:
        """Whether examples of like length could be put together, and are not.

        A stream has no sampler that could; and transformers' finds no length in a pair of answers.
        """
        is_stream = bool(self.facts.get("loader", {}).get("iterable"))
        return (
            not is_stream
            and not self.is_of_preferences
            and self.argument("train_sampling_strategy") != "group_by_length"
        )

    def share(self, seconds: float) -> float:
        """Of the training loop's time."""
        return seconds / self.loop_seconds if self.loop_seconds > 0 else 0.0

    def usd(self, seconds: float | None) -> float | None:
        """What so much of the run's time costs; None where its price is not known."""
        price = self.account.money.price_usd_per_hour
        return None if price is None or seconds is None else seconds * price / 3600

    def cost(self, seconds: float | None = None, held_bytes: int | None = None) -> Cost:
        """A cost over the run."""
        return Cost(seconds, held_bytes, self.usd(seconds))

    def gain(self, seconds: float, basis: str, held_bytes: int | None = None) -> Gain:
        """What is gained over the run where so much of the loop's time is saved for the same tokens.

        Args:
            seconds: not more than the loop took.
            basis: how it was predicted.
            held_bytes: of memory, where that is gained too.
        """
        saved = max(0.0, min(seconds, self.loop_seconds))
        return Gain(self.share(saved), saved, held_bytes, self.usd(saved), basis)


_MOST_BYTES = 16 << 20
"""About 20,000 steps: of a longer run the last ones of each rank, so that a diagnosis takes seconds."""


class ColumnLine(StepLine, gc=False, kw_only=True):
    """What the columns need of a step record."""

    micro_batches: int = 1
    cpu_seconds: float | None = None


def read_columns(path: Path) -> StepColumns:
    """The last steps of a file; half-written and broken lines are left out and logged.

    Raises:
        OutputError: the file cannot be read, or was written by a newer version.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _MOST_BYTES))
            text = file.read()
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or error}") from error
    if size > _MOST_BYTES:
        text = text[text.find(b"\n") + 1 :]
    whole, _, _half = text.rpartition(b"\n")
    if not whole:
        return columns_of([])
    block = Block(path, 1, whole.count(b"\n") + 1, whole + b"\n")
    return columns_of(_reader().read(block)[0])


@functools.cache
def _reader() -> LineReader[ColumnLine]:
    return LineReader(ColumnLine, "step record")


def columns_of(lines: Sequence[ColumnLine]) -> StepColumns:
    """A row per line."""
    sequences = [line.sequences for line in lines]
    memory = [line.memory for line in lines]
    loading = [line.loader for line in lines]
    return StepColumns(
        segment=_column(line.segment for line in lines),
        step=_column(line.step for line in lines),
        wall_seconds=_column(line.wall_seconds for line in lines),
        phase_seconds=_table([line.phase_seconds for line in lines], 0.0),
        device_seconds=_table([line.device_seconds for line in lines], 0.0),
        micro_batches=_column(line.micro_batches for line in lines),
        rows=_column(None if part is None else part.rows for part in sequences),
        processed=_column(line.tokens.processed for line in lines),
        non_padding=_column(line.tokens.non_padding for line in lines),
        loss_bearing=_column(line.tokens.loss_bearing for line in lines),
        loader=_table([None if part is None else msgspec.structs.asdict(part) for part in loading], float("nan")),
        cpu_seconds=_column(line.cpu_seconds for line in lines),
        loss=_column(line.loss for line in lines),
        learning_rate=_column(line.learning_rate for line in lines),
        grad_norm=_column(line.grad_norm for line in lines),
        peak_allocated_bytes=_column(None if part is None else part.peak_allocated_bytes for part in memory),
        peak_reserved_bytes=_column(None if part is None else part.peak_reserved_bytes for part in memory),
        allocation_retries=_column(None if part is None else part.allocation_retries for part in memory),
        waited_seconds=_table([line.waited_seconds for line in lines], 0.0),
    )


def _column(values: Iterable[float | int | str | None]) -> Column:
    return np.array([float("nan") if value is None else float(value) for value in values], dtype=np.float64)


def _table(parts: Sequence[Mapping[str, Any] | None], absent: float) -> dict[str, Column]:
    """A column for every name under which any part holds a number; a row without the part is NaN."""
    held = [part for part in parts if part is not None]
    names = dict.fromkeys(name for part in held for name, value in part.items() if isinstance(value, (int, float)))

    def of(name: str) -> Column:
        return _column(None if part is None else part.get(name, absent) for part in parts)

    return {name: of(name) for name in names}


def in_the_loop(case: Case) -> list[int]:
    """Which buckets of ``series.system`` were read from the first step to the last; empty without a sampler."""
    series = case.series
    if series is None or not len(series.steps):
        return []
    began = series.steps.started_at_seconds[0]
    ended = series.steps.started_at_seconds[-1] + series.steps.wall_seconds[-1]
    system = series.system
    bounds = zip(system.started_at_seconds, system.ended_at_seconds, strict=True)
    return [place for place, (start, end) in enumerate(bounds) if start >= began and end <= ended]


def mean_in_the_loop(case: Case, name: str) -> float | None:
    """Mean of a figure of the host (see ``measure/probes/``) over the training loop.

    Args:
        case: the run.
        name: of the figure: ``other_cores``.

    Returns:
        None where it was not read.
    """
    if case.series is None:
        return None
    band = case.series.system.host.get(name, Band())
    read = [band.mean[place] for place in in_the_loop(case) if place < len(band.mean)]
    known = [value for value in read if value is not None]
    return sum(known) / len(known) if known else None


RESOLVED = "recipe.resolved.yaml"


def read_case(directory: Path, reader: RunReader | None = None) -> Case:
    """Read what a run left, whether it goes on, ended or died.

    Args:
        directory: the ``efficiency`` folder of the run.
        reader: one that has read the records before, so that only what is new is read.

    Raises:
        OutputError: there are no records, they cannot be read, or were written by a newer version.
    """
    if not any(rank_files(directory, kind) for kind in ("steps", "spans")) and (directory / RUN_JSON).exists():
        return Case(str(directory), read_account(directory / RUN_JSON), {}, recipe=_recipe(directory / RESOLVED))
    records = (reader or RunReader(directory)).look()
    account = build_account(records)
    return case_of(directory, records, account, build_series(account, records))


def case_of(directory: Path, records: RunRecords, account: RunAccount, series: RunSeries) -> Case:
    """The case of records that were read.

    Args:
        directory: where they lie.
        records, account, series: of the same.

    Raises:
        OutputError: the steps cannot be read again.
    """
    return Case(
        directory=str(directory),
        account=account,
        steps={rank: read_columns(path) for rank, path in rank_files(directory, "steps").items()},
        facts=_facts(records.processes),
        evaluations=_pauses(records.processes, "evaluation"),
        saves=_pauses(records.processes, "save"),
        series=series,
        recipe=_recipe(directory / RESOLVED),
    )


def _facts(processes: Iterable[ProcessSpans]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for process in processes:
        for topic, facts in process.facts.items():
            found.setdefault(topic, {}).update(facts)
    return found


def _pauses(processes: Iterable[ProcessSpans], kind: str) -> list[Pause]:
    notes = [note for process in processes for note in process.notes.get(kind, ())]
    return [Pause(int(note.get("step") or 0), float(note["seconds"])) for note in notes if note.get("seconds")]


def _recipe(path: Path) -> Mapping[str, Any] | None:
    """Values by dotted key; a file that cannot be read is as none, for the rules can do without."""
    if not path.exists():
        return None
    try:
        values = read_resolved(path).values
    except OutputError:
        return None
    return {value.key: yaml.safe_load(value.value) for value in values}


logger = logging.getLogger(__name__)

_TRACED_MOST_BYTES = 64 << 20
"""Of the file as it lies there; a larger one takes longer than a diagnosis at the end of a run may."""


def traced(case: Case) -> TraceBreakdown | None:
    """Of rank 0, the last cycle; None without a trace, or with one that cannot be read or is very large."""
    found = sorted(Path(case.directory, "profile").glob("trace.rank0.*.json*"), key=lambda path: path.stat().st_mtime)
    if not found or found[-1].stat().st_size > _TRACED_MOST_BYTES:
        return None
    return _read(found[-1], found[-1].stat().st_mtime_ns)


def traced_device(case: Case) -> DeviceBreakdown | None:
    """The busiest device of it; None where it has no events of any."""
    found = traced(case)
    if found is None or not found.devices:
        return None
    return max(found.devices, key=lambda device: device.busy.busy_seconds)


@functools.lru_cache(maxsize=2)
def _read(path: Path, _changed_ns: int) -> TraceBreakdown | None:
    try:
        return trace_breakdown(path)
    except OutputError as error:
        logger.debug("A trace is left out of the diagnosis: %s", error)
        return None
