"""The lines of ``spans.jsonl`` and ``system.jsonl``; times are seconds from the start of the process. Facts are what it
says of its run, by topic; ``missing`` in them has what it could not find out, and why."""

from typing import Any, Literal

import msgspec

from hf_efficient.records.amounts import MemoryCategory
from hf_efficient.records.steps import SCHEMA_VERSION

RecordedBy = Literal["recipe", "trainer", "callback", "unknown"]
Ended = Literal["done", "stopped", "error", "died"]
StartFrom = Literal["kernel", "psutil", "import", "records"]
"""Source of the start of a process: ``kernel`` (to 10 ms), ``psutil`` (wall clock, to about a second), ``import``
(unknown: counted from the import of hf_efficient), ``records`` (the line that says it is lost)."""


class _Line(msgspec.Struct, kw_only=True, tag_field="kind"):
    process: int


class ProcessLine(_Line, tag="process"):
    way: RecordedBy
    process_start_from: StartFrom
    began_at_seconds: float


class SpanLine(_Line, tag="span"):
    """A stretch of time outside the training loop, with the exclusive seconds of its phases."""

    started_at_seconds: float
    wall_seconds: float
    phase_seconds: dict[str, float]

    @property
    def ends_at_seconds(self) -> float:
        return self.started_at_seconds + self.wall_seconds


class TrainLine(_Line, tag="train"):
    """A call of ``train()``; ``segment`` is its number in the records of the steps."""

    segment: int
    at_seconds: float


class TrainEndLine(_Line, tag="train_end"):
    segment: int
    ended: Ended
    error: str | None
    at_seconds: float


class EndLine(_Line, tag="end"):
    """The end of the run in this process, with its peaks of memory."""

    ended: Ended
    error: str | None
    at_seconds: float
    memory: dict[str, int]


class AliveLine(_Line, tag="alive"):
    """The heartbeat: until when the process is known to have lived, and the span under way. Written over in place."""

    at_seconds: float
    started_at_seconds: float
    open_phase: str | None
    phase_seconds: dict[str, float]
    memory: dict[str, int]


class Meter(msgspec.Struct, gc=False):
    """An energy meter. ``range_joules``: where its counter starts again from 0; None where it does not."""

    id: str
    machine: str
    source: Literal["nvml", "rapl", "estimate"]
    unit: Literal["joules", "watts"]
    note: str
    range_joules: float | None = None


class SystemSample(msgspec.Struct, gc=False, kw_only=True):
    """What the sampler saw, about once a second; what is not known is left out. ``joules`` are counters as read,
    ``watts`` readings or means since the sample before, by meter. ``faults``: why a meter does not answer."""

    process: int
    at_seconds: float
    schema_version: int = SCHEMA_VERSION
    rss_bytes: int | None = None
    host_available_bytes: int | None = None
    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    joules: dict[str, float] = {}
    watts: dict[str, float] = {}
    host: dict[str, float] = {}
    gpus: dict[str, dict[str, float]] = {}
    throttled: dict[str, list[str]] = {}
    meters: dict[str, Meter] = {}
    faults: dict[str, str] = {}


class PriceFacts(msgspec.Struct):
    """Topic ``price``: of everything that the run occupies; ``reason``: why it is not known."""

    price_usd_per_hour: float | None = None
    source: str | None = None
    estimated: bool = False
    reason: str = "no price is known"


class GridFacts(msgspec.Struct):
    """Topic ``grid``: the intensity of the electricity, and where that figure comes from."""

    grams_per_kwh: float
    source: str


class WorkFacts(msgspec.Struct):
    """Topic ``work``, of a ``train()`` call: what its devices can do, and why FLOPs or peak are not known."""

    peak_flops_per_second: float | None = None
    peak_source: str | None = None
    peak_estimated: bool = False
    peak_reason: str | None = None
    accelerators: int = 1
    dtype: str | None = None
    reason: str | None = None
    hardware_reason: str | None = None


class MemoryFacts(msgspec.Struct):
    """Topic ``memory``: tensors counted on a device; ``positions``: of the micro-batch that was counted."""

    device: str = ""
    categories: list[MemoryCategory] = []
    positions: int | None = None


class DataFacts(msgspec.Struct):
    """Topic ``data``: ``fill_rate`` is the share of the packs' positions that hold tokens."""

    fill_rate: float | None = None


class LoaderFacts(msgspec.Struct):
    """Topic ``loader``: how the data loader was set up."""

    workers: int | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    pin_memory: bool | None = None


class ExchangeFacts(msgspec.Struct):
    """Topic ``exchange``: a step's exchange of gradients, and how much of it computation covers, by DDP's own log."""

    seconds: float
    covered_seconds: float


class SettingsFacts(msgspec.Struct):
    """Topic ``settings``, of which the account reads the device alone: type, index, name."""

    device: dict[str, Any] = {}
