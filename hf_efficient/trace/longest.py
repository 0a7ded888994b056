"""The longest gaps of a device, and what the host did in them."""

from __future__ import annotations

import numpy as np

from hf_efficient.records.trace_device import DeviceGap
from hf_efficient.trace.host import HostWork
from hf_efficient.trace.idle import CAUSES, gap_causes
from hf_efficient.trace.intervals import gaps
from hf_efficient.trace.names import short_name
from hf_efficient.trace.steps import StepMarks
from hf_efficient.trace.work import DeviceWork

__all__ = ["NOTHING_RECORDED", "longest_gaps"]

NOTHING_RECORDED = "(nothing recorded)"  # Python, where the profiler recorded no stacks
_STEP = "ProfilerStep"
_MOST_GAPS = 10
_MOST_DOINGS = 3
_LEAST_SHARE = 0.05


def longest_gaps(work: DeviceWork, host: HostWork, steps: StepMarks) -> tuple[DeviceGap, ...]:
    """The longest first."""
    found = gaps(work.start, work.end)
    causes = gap_causes(found, work)
    longest = np.argsort(-found.lengths, kind="stable")[:_MOST_GAPS]
    inside = steps.index(found.start[longest])
    told = []
    for gap, step in zip(longest.tolist(), inside.tolist(), strict=True):
        call = int(work.calls[found.after[gap]])
        told.append(
            DeviceGap(
                start_seconds=float(found.start[gap]) / 1e6,
                seconds=float(found.lengths[gap]) / 1e6,
                cause=CAUSES[int(causes[gap])],
                before=_name(work, int(found.before[gap])),
                after=_name(work, int(found.after[gap])),
                host=_doings(host, call, float(found.start[gap]), float(found.end[gap])) if call >= 0 else (),
                step=int(steps.number[step]) if step >= 0 else None,
            )
        )
    return tuple(told)


def _name(work: DeviceWork, one: int) -> str:
    return short_name(work.events.names[work.events.name[work.rows[one]]])


def _doings(host: HostWork, call: int, start: float, end: float) -> tuple[tuple[str, float], ...]:
    """What the submitting thread did between two moments: self times in that window, by name."""
    tree, thread = host.everything, host.events.thread[call]
    first, last = np.searchsorted(tree.thread, thread), np.searchsorted(tree.thread, thread, side="right")
    near = np.arange(first, first + np.searchsorted(tree.start[first:last], end))
    near = near[tree.end[near] > start]
    clipped = np.minimum(tree.end[near], end) - np.maximum(tree.start[near], start)
    place = {node: index for index, node in enumerate(near.tolist())}
    alone = clipped.copy()
    for index, parent in enumerate(tree.parent[near].tolist()):
        if parent in place:
            alone[place[parent]] -= clipped[index]
    by_name: dict[str, float] = {}
    for row, seconds in zip(tree.rows[near].tolist(), alone.tolist(), strict=True):
        name = host.events.names[host.events.name[row]]
        if not name.startswith(_STEP):
            by_name[name] = by_name.get(name, 0.0) + max(seconds, 0.0)
    by_name[NOTHING_RECORDED] = max(end - start - sum(by_name.values()), 0.0)
    ranked = sorted(((name, value / (end - start)) for name, value in by_name.items()), key=lambda one: -one[1])
    return tuple(one for one in ranked[:_MOST_DOINGS] if one[1] >= _LEAST_SHARE)
