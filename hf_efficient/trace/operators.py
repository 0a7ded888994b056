"""The operators on the host, by their self time."""

from __future__ import annotations

import numpy as np

from hf_efficient.records.trace_host import HostBreakdown, OperatorTime
from hf_efficient.records.trace_kernels import KERNEL_FAMILIES
from hf_efficient.trace.families import operator_family
from hf_efficient.trace.host import HostWork
from hf_efficient.trace.kernels import family_times
from hf_efficient.trace.kinds import Kind
from hf_efficient.trace.nest import Nest
from hf_efficient.trace.table import Ints

__all__ = ["host_breakdown"]

_MOST_OPERATORS = 15
_OPTIMIZER = KERNEL_FAMILIES.index("optimizer")


def host_breakdown(host: HostWork) -> HostBreakdown | None:
    """All threads together; None where the trace has no operators."""
    events, tree = host.events, host.work
    is_operator = events.kind[tree.rows] == Kind.OPERATOR
    if not is_operator.any():
        return None
    nodes = np.flatnonzero(is_operator)
    names, place = np.unique(events.name[tree.rows[nodes]], return_inverse=True)
    alone = tree.self_times()[nodes]
    outer = _outermost(tree, events.name[tree.rows].astype(np.int64), nodes)
    lengths = np.where(outer, tree.end[nodes] - tree.start[nodes], 0.0)
    by_name = np.array([KERNEL_FAMILIES.index(operator_family(events.names[name])) for name in names.tolist()])
    stepping = host.in_optimizer[nodes] >= 0
    self_seconds = np.bincount(place, alone) / 1e6
    total_seconds = np.bincount(place, lengths) / 1e6
    counts = np.bincount(place)
    total = float(self_seconds.sum())
    return HostBreakdown(
        threads=len(np.unique(tree.thread[nodes])),
        operator_seconds=total,
        families=family_times(alone, np.where(stepping, _OPTIMIZER, by_name[place])),
        operators=tuple(
            OperatorTime(
                name=events.names[names[one]],
                family=KERNEL_FAMILIES[int(by_name[one])],
                self_seconds=float(self_seconds[one]),
                share=float(self_seconds[one]) / total if total else 0.0,
                total_seconds=float(total_seconds[one]),
                count=int(counts[one]),
            )
            for one in np.argsort(-self_seconds, kind="stable")[:_MOST_OPERATORS].tolist()
        ),
    )


def _outermost(tree: Nest, names: Ints, nodes: Ints) -> np.ndarray:
    """Which nodes are not directly inside one of the same name: those would be counted twice."""
    parent = tree.parent[nodes]
    directly: np.ndarray = (parent < 0) | (names[np.maximum(parent, 0)] != names[nodes])
    return directly
