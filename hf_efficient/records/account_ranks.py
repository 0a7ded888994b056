"""What each rank of a run did, and what training on several cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hf_efficient.records.account_memory import MemoryCategory

__all__ = ["AcrossRanks", "PhaseSkew", "RankAccount"]


@dataclass(frozen=True)
class RankAccount:
    """What is known of one rank.

    Attributes:
        rank: its number.
        steps: optimizer steps recorded.
        last_step: the Trainer's number of the last of them.
        training_seconds: wall time of its steps without evaluation and checkpointing.
        host: name of its machine; None in older records.
        device: that trains in it: the GPU's name with its index, or ``cpu``.
        phase_seconds: exclusive host seconds of its training loop per phase.
        waited_seconds: of them, the host time in which it waited for other ranks: ``communication``, and collectives
            within logging, evaluations and saves. None where waits were not told apart, or the device tells.
        device_seconds: seconds on its device per phase; None without device events.
        peak_rss_bytes: resident host memory, from the start of the process.
        device_peak_allocated_bytes, device_peak_reserved_bytes: of its CUDA device.
        memory_categories: what the rank itself held, as far as it was counted; nothing is derived.
    """

    rank: int
    steps: int
    last_step: int | None
    training_seconds: float
    host: str | None = None
    device: str | None = None
    phase_seconds: dict[str, float] | None = None
    waited_seconds: float | None = None
    device_seconds: dict[str, float] | None = None
    peak_rss_bytes: int | None = None
    device_peak_allocated_bytes: int | None = None
    device_peak_reserved_bytes: int | None = None
    memory_categories: list[MemoryCategory] = field(default_factory=list)


@dataclass(frozen=True)
class PhaseSkew:
    """The rank that took the longest in a phase, waits for others apart, over the training loop.

    Attributes:
        phase: its name.
        rank: which.
        host, device: where it ran, as in ``RankAccount``.
        own_seconds: of it.
        extra_seconds: those less the median of the other ranks': about what the others waited for it, as far as they
            were not late themselves.
        usd: what so much of the run's time costs; None where its price is not known.
        on_device: whether the device's events told it.
    """

    phase: str
    rank: int
    host: str | None
    device: str | None
    own_seconds: float
    extra_seconds: float
    usd: float | None
    on_device: bool


@dataclass(frozen=True)
class AcrossRanks:
    """What training on several ranks cost beside what each had to do.

    Attributes:
        ranks: that trained.
        hosts: machines; None where they told no names.
        skew: by phase, the most extra seconds first.
        exposed_seconds: that the rank which waited least spent in communication: what is left of it where nobody is
            late. None where waits were not told apart.
        late_seconds: that the ranks waited beyond that, their mean: for ranks that came later.
        exposed_by: ``device``: events in its queue of work; ``host``: the time that the host waited, on a CPU. Both
            are an estimate of what nothing covers; what computation covers, a trace tells.
        exposed_usd, late_usd: of these, at the run's price for all ranks.
        covered_seconds: that gradients were on their way while the rank still computed: an estimate, from DDP's own log
            of some steps of the rank with the shortest exchange. None without that log.
    """

    ranks: int
    hosts: int | None
    skew: list[PhaseSkew]
    exposed_seconds: float | None = None
    late_seconds: float | None = None
    exposed_by: Literal["device", "host"] | None = None
    exposed_usd: float | None = None
    late_usd: float | None = None
    covered_seconds: float | None = None
