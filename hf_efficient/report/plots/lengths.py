"""How long the sequences were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hf_efficient.records import SequenceAccount
from hf_efficient.report.plots.figure import Figure, Missing, axis, rounded
from hf_efficient.units import count

__all__ = ["sequence_lengths"]

_OCTAVE_PART = 0.25  # buckets are a quarter of an octave wide


def sequence_lengths(sequences: SequenceAccount) -> Figure | Missing:
    """Documents by length, in the buckets that they were counted in; each ends at its bound, on a logarithmic axis."""
    if not sequences.length_buckets:
        return Missing("Sequence lengths", "the lengths of the sequences were not counted")
    bounds = sorted(int(bound) for bound in sequences.length_buckets)
    told = f"{count(sum(sequences.length_buckets.values()))} documents by their tokens without padding"
    if sequences.mean_tokens is not None:
        told += f", {sequences.mean_tokens:,.1f} on average"
    if sequences.shortest_tokens is not None and sequences.longest_tokens is not None:
        told += f", from {sequences.shortest_tokens:,} to {sequences.longest_tokens:,}"
    return Figure(
        "sequence-lengths",
        "Sequence lengths",
        f"{told}.",
        [
            {
                "type": "bar",
                "x": rounded(math.log2(bound) - _OCTAVE_PART / 2 for bound in bounds),
                "y": [sequences.length_buckets[str(bound)] for bound in bounds],
                "width": _OCTAVE_PART,
                "customdata": [f"≤ {bound:,}" for bound in bounds],
                "marker": {"color": "#65b5f4"},
                "hovertemplate": "%{customdata} tokens: %{y:,} documents<extra></extra>",
            }
        ],
        {
            "hovermode": "closest",
            "xaxis": axis("tokens of a document", showgrid=False, zeroline=False, **_ticks(bounds)),
            "yaxis": axis("documents", rangemode="tozero"),
        },
        260,
    )


def _ticks(bounds: Sequence[int]) -> dict[str, Any]:
    """The powers of two."""
    powers = range(math.floor(math.log2(bounds[0])), math.ceil(math.log2(bounds[-1])) + 1)
    return {"tickvals": list(powers), "ticktext": [f"{2**power:,}" for power in powers]}
