"""How fast accelerators of one machine exchange data, with each other and with the host (``facts/links.yaml``)."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hf_efficient.hardware.efficiencies import Reached
from hf_efficient.hardware.tables import rows

__all__ = ["Link", "collective_bandwidth", "collective_overhead", "host_bandwidth", "link_of"]


@dataclass(frozen=True)
class Link:
    """Of one accelerator.

    Attributes:
        kind: nvlink, xgmi or pcie.
        bytes_per_second: in one direction, with all others together, as stated.
        host_bytes_per_second: in one direction, with the host, as stated.
        neighbours: that each have a link of their own; None where all share one way.
        source: who published it, and when it was read.
    """

    kind: str
    bytes_per_second: float
    host_bytes_per_second: float
    neighbours: int | None
    source: str


def link_of(name: str) -> Link | None:
    """The link of an accelerator by its name; None where none is known."""
    row = next((row for row in _table("links") if name in row["of"]), None)
    if row is None:
        return None
    return Link(
        kind=row["kind"],
        bytes_per_second=row["gb_per_second"] * 1e9,
        host_bytes_per_second=row["host_gb_per_second"] * 1e9,
        neighbours=row.get("neighbours"),
        source=f"{row['source']} ({row['date']})",
    )


def collective_bandwidth(name: str, ranks: int) -> Reached | None:
    """Bus bandwidth of collectives among so many of an accelerator, bytes per second; None where no link is known.

    Stated, times the share that somebody reached on such an accelerator, or else the median share of those with a link
    of the same kind. Where each neighbour has a link of its own, fewer ranks use fewer of them.

    Hand-worked: eight H100 SXM, 450 GB/s stated, 335.2 reached. Two MI300X, 448 / 7 = 64 stated, of which 312.9 / 448
    are reached: 44.7 GB/s.
    """
    link = link_of(name)
    if link is None:
        return None
    used = 1.0 if link.neighbours is None else min(1.0, (ranks - 1) / link.neighbours)
    share = _share("collectives", name, lambda held: held.bytes_per_second, link.kind)
    return Reached(link.bytes_per_second * used * share.value, share.estimated, share.source)


def host_bandwidth(name: str) -> Reached | None:
    """Between an accelerator and the host, one direction, bytes per second; None where no link is known."""
    link = link_of(name)
    if link is None:
        return None
    share = _share("host_link", name, lambda held: held.host_bytes_per_second, None)
    return Reached(link.host_bytes_per_second * share.value, share.estimated, share.source)


def collective_overhead() -> Reached:
    """Seconds of each collective beyond its bytes; an estimate."""
    row = next(row for row in _table("efficiencies") if row["figure"] == "collective_overhead")
    return Reached(row["microseconds"] / 1e6, True, f"{row['source']} ({row['date']})")


def _share(figure: str, name: str, stated: Callable[[Link], float], kind: str | None) -> Reached:
    """What is reached of what is stated: of this accelerator, or the median of those of the same kind."""
    known = [row for row in _table("efficiencies") if row["figure"] == figure]
    own = [row for row in known if name in row["of"]]
    if own:
        return Reached(_reached(own[0], stated), False, f"{own[0]['source']} ({own[0]['date']})")
    alike = [row for row in known if kind is None or _link(row).kind == kind]
    shares = [_reached(row, stated) for row in alike]
    return Reached(statistics.median(shares), True, f"the median of {len(shares)} published figures of other cards")


def _reached(row: dict[str, Any], stated: Callable[[Link], float]) -> float:
    return float(row["measured_gb_per_second"] * 1e9 / stated(_link(row)))


def _link(row: dict[str, Any]) -> Link:
    link = link_of(row["of"][0])
    assert link is not None
    return link


@functools.lru_cache(maxsize=2)
def _table(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(rows(name))
