"""The time of kernels by family, and the kernels that take longest."""

from __future__ import annotations

import numpy as np

from hf_efficient.records.trace_kernels import KERNEL_FAMILIES, FamilyTime, KernelTime
from hf_efficient.trace.families import kernel_family
from hf_efficient.trace.host import HostWork
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.names import short_name
from hf_efficient.trace.table import Floats, Ints
from hf_efficient.trace.work import DeviceWork

__all__ = ["family_times", "kernel_families", "kernel_times"]

_MOST_KERNELS = 15
_MOST_CHARACTERS = 400
_OPTIMIZER = KERNEL_FAMILIES.index("optimizer")


def kernel_families(work: DeviceWork, host: HostWork) -> Ints:
    """The family of each, as an index into ``KERNEL_FAMILIES``.

    By its name; but a kernel that was launched inside ``Optimizer.step`` belongs to the optimizer, whatever it
    computes, unless it communicates.
    """
    events = work.events
    names, place = np.unique(events.name[work.rows], return_inverse=True)
    by_name = np.array([KERNEL_FAMILIES.index(kernel_family(events.names[name])) for name in names.tolist()], dtype=int)
    stepping = host.around(work.calls, host.in_optimizer) >= 0
    kernel = (events.kind[work.rows] == Kind.KERNEL) & ~work.communicates
    return np.where(stepping & kernel, _OPTIMIZER, by_name[place])


def family_times(lengths: Floats, families: Ints) -> tuple[FamilyTime, ...]:
    """Times added up, the longest family first; families without any are left out.

    Args:
        lengths: in microseconds.
        families: of each, an index into ``KERNEL_FAMILIES``.
    """
    seconds = np.bincount(families, lengths, minlength=len(KERNEL_FAMILIES)) / 1e6
    counts = np.bincount(families, minlength=len(KERNEL_FAMILIES))
    total = float(seconds.sum())
    shares = seconds / total if total else seconds
    found = [
        FamilyTime(family, seconds=float(seconds[one]), share=float(shares[one]), count=int(counts[one]))
        for one, family in enumerate(KERNEL_FAMILIES)
        if counts[one]
    ]
    return tuple(sorted(found, key=lambda one: -one.seconds))


def kernel_times(work: DeviceWork, families: Ints, host: HostWork) -> tuple[KernelTime, ...]:
    """The kernels, copies and memsets that take longest, all runs of one name and family together."""
    lengths = work.end - work.start
    key = work.events.name[work.rows].astype(np.int64) * len(KERNEL_FAMILIES) + families
    keys, place, counts = np.unique(key, return_inverse=True, return_counts=True)
    seconds = np.bincount(place, lengths, minlength=len(keys)) / 1e6
    total = float(seconds.sum())
    operators = host.around(work.calls, host.operator)
    found = []
    names = [work.events.names[key // len(KERNEL_FAMILIES)] for key in keys.tolist()]
    for one in sorted(range(len(keys)), key=lambda one: (-seconds[one], names[one]))[:_MOST_KERNELS]:
        full_name = names[one]
        found.append(
            KernelTime(
                name=short_name(full_name),
                full_name=full_name[:_MOST_CHARACTERS],
                family=KERNEL_FAMILIES[int(keys[one]) % len(KERNEL_FAMILIES)],
                seconds=float(seconds[one]),
                share=float(seconds[one]) / total if total else 0.0,
                count=int(counts[one]),
                mean_seconds=float(seconds[one]) / int(counts[one]),
                operator=_chief_operator(work, operators[place == one], lengths[place == one]),
            )
        )
    return tuple(found)


def _chief_operator(work: DeviceWork, operators: Ints, lengths: Floats) -> str | None:
    """Of the operators that are known, the one whose launches make up most of the time."""
    names = np.where(operators >= 0, work.events.name[np.maximum(operators, 0)], -1)
    found, place = np.unique(names, return_inverse=True)
    seconds = np.where(found >= 0, np.bincount(place, lengths), -1.0)
    chief = int(found[np.argmax(seconds)])
    return work.events.names[chief] if chief >= 0 else None
