"""What a process says of its run, by topic, for the account; ``missing`` has what it could not find out, and why."""

import msgspec

from hf_efficient.records.amounts import MemoryCategory


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


class DeviceFacts(msgspec.Struct):
    type: str = ""
    name: str | None = None
    index: int | None = None


class SettingsFacts(msgspec.Struct):
    """Topic ``settings``, of which the account reads the device alone."""

    device: DeviceFacts | None = None
