"""A device of which most memory stays empty, where a cheaper one would do."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.memory_room import MemoryRoom, memory_room
from hf_efficient.diagnosis.rule import Verdict
from hf_efficient.estimate.cuda_process import CONTEXT
from hf_efficient.hardware.accelerators import Accelerator, accelerator_of_device, accelerators
from hf_efficient.hardware.prices import offers
from hf_efficient.records.findings import Evidence, Finding, Gain, Remedy
from hf_efficient.units import share

__all__ = ["unused_memory"]

_UNUSED = 0.5
_MARGIN = 1.1
_WORTH = 0.1


@dataclass(frozen=True)
class _Other:
    device: Accelerator
    slower: float
    usd_per_gpu_hour: float

    def relative_cost(self) -> float:
        return self.slower * self.usd_per_gpu_hour


def unused_memory(case: Case) -> Verdict:
    """Less than half of a CUDA device's memory was taken, and another one that holds it would cost a tenth less.

    How much slower that one is, is an estimate: the worse of the ratios of their stated peaks and bandwidths.
    """
    room = memory_room(case)
    here = accelerator_of_device(str(case.settings("device").get("name", ""))) if case.on_cuda else None
    if room is None or here is None or room.share >= _UNUSED:
        return None
    ranks = max(1, case.account.work.accelerators, len(case.account.ranks))
    price = case.account.money.price_usd_per_hour
    if price is None or case.account.money.cost_usd is None:
        return None
    paid = price / ranks
    found = [other for other in _others(case, here, room) if other.relative_cost() < (1 - _WORTH) * paid]
    if not found:
        return None
    best = min(found, key=_Other.relative_cost)
    saved = case.account.money.cost_usd * (1 - best.relative_cost() / paid)
    return Finding(
        rule="unused_memory",
        title=f"{share(1 - room.share)} of the {here.name}'s memory stay empty: {best.device.name} would do",
        severity="info",
        confidence="possible",
        evidence=[
            Evidence("memory taken at the peak", room.held_bytes, "bytes", room.source),
            Evidence("memory of the device", room.device_bytes, "bytes", "spans.jsonl: settings.device.memory_bytes"),
            Evidence("an hour of a GPU now", paid, "usd", "run.json: money.price_usd_per_hour"),
            Evidence(f"an hour of {best.device.name}", best.usd_per_gpu_hour, "usd", "list prices, the lowest"),
            Evidence("time there, an estimate", best.slower, "times", "stated peaks and bandwidths"),
        ],
        remedies=[
            Remedy(
                f"rent {best.device.name} ({best.usd_per_gpu_hour:.2f} USD an hour), after a look at "
                f'hf-efficient plan RECIPE --gpu "{best.device.name}"',
                costs=f"the run takes about {best.slower:.1f} times as long",
                gain=Gain(None, None, None, saved, "the run's cost, by the price and the time there"),
            )
        ],
    )


def _others(case: Case, here: Accelerator, room: MemoryRoom) -> list[_Other]:
    needed = _MARGIN * (room.held_bytes + CONTEXT.bytes)
    found = []
    for device in accelerators():
        slower = _slower(case.account.work.dtype, here, device)
        prices = [offer.usd_per_gpu_hour for offer in offers(device.name, "on_demand")]
        if device.name == here.name or slower is None or not prices or device.usable_memory_bytes < needed:
            continue
        found.append(_Other(device, slower, min(prices)))
    return found


def _slower(dtype: str | None, here: Accelerator, there: Accelerator) -> float | None:
    """How many times the run takes there; None where a figure is missing."""
    peaks = [device.peak_flops_per_second.get(dtype or "") for device in (here, there)]
    bandwidths = [device.bandwidth_bytes_per_second for device in (here, there)]
    if not all(peaks) or not all(bandwidths):
        return None
    return max(pair[0] / pair[1] for pair in (peaks, bandwidths) if pair[0] is not None and pair[1])
