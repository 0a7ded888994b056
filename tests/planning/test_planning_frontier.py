"""Which accelerators nobody should take."""

from __future__ import annotations

import dataclasses

from hf_efficient.planning.gpu import with_frontier
from hf_efficient.records.plan import PlannedGpu, PlannedSpot


def gpu(name, seconds, usd, fits=True):
    return dataclasses.replace(
        PlannedGpu(name, 2**32, 2**32, 2**31, None, fits, 0, seconds, None, {}), usd_per_million_tokens=usd
    )


def marked(*gpus):
    return [one.name for one in with_frontier(gpus) if one.on_frontier]


def test_those_that_are_not_beaten():
    gpus = [gpu("cheap", 2.0, 1.0), gpu("fast", 1.0, 3.0), gpu("slow and dear", 2.0, 3.0), gpu("between", 1.5, 2.0)]
    assert marked(*gpus) == ["cheap", "fast", "between"]


def test_equals_are_both_marked():
    assert marked(gpu("a", 2.0, 1.0), gpu("b", 2.0, 1.0), gpu("c", 2.0, 1.1)) == ["a", "b"]


def test_what_does_not_fit_or_is_not_known_is_in_nobodys_way():
    gpus = [gpu("too small", 1.0, 0.1, fits=False), gpu("no price", 0.5, None), gpu("no time", None, 0.1)]
    assert marked(*gpus, gpu("it", 2.0, 1.0)) == ["it"]


def test_spot_machines_count_with_what_they_lose():
    """1 s with twice the work lost is 3 s: slower than 2 s."""
    lossy = PlannedSpot(1.0, "a", 2.0, 1, 1.0, 1, overhead_share=2.0)
    spot = dataclasses.replace(gpu("lossy", 1.0, 3.0), market="spot", spot=lossy)
    assert marked(spot, gpu("steady", 2.0, 2.0)) == ["steady"]
    assert marked(dataclasses.replace(spot, market="on_demand"), gpu("steady", 2.0, 2.0)) == ["lossy", "steady"]
