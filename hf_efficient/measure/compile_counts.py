"""What torch.compile did in this process, by dynamo's own counters."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["compile_counts"]

_MOST_REASONS = 10


def compile_counts() -> dict[str, Any] | None:
    """None where nothing was compiled; imports nothing.

    ``frames`` (functions, and what follows a graph break in one), ``recompiles`` (compilations of a frame after its
    first), ``graphs``, ``graph_breaks``, and ``break_reasons``: first line to how often, the most frequent.
    """
    frames, utilities = sys.modules.get("torch._dynamo.convert_frame"), sys.modules.get("torch._dynamo.utils")
    if frames is None or utilities is None:
        return None
    compiled = getattr(frames, "FRAME_COMPILE_COUNTER", {})
    if not compiled:
        return None
    breaks = utilities.counters["graph_break"]
    reasons = sorted(breaks.items(), key=lambda one: -one[1])[:_MOST_REASONS]
    return {
        "frames": len(compiled),
        "recompiles": sum(times - 1 for times in compiled.values()),
        "graphs": int(utilities.counters["stats"]["unique_graphs"]),
        "graph_breaks": int(sum(breaks.values())),
        "break_reasons": {str(reason).strip().partition("\n")[0][:200]: times for reason, times in reasons},
    }
