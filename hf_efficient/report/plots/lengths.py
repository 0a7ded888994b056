"""How long the sequences were."""

from __future__ import annotations

from hf_efficient.records import SequenceAccount
from hf_efficient.report.plots.figure import Figure, Missing, axis
from hf_efficient.units import count

__all__ = ["sequence_lengths"]


def sequence_lengths(sequences: SequenceAccount) -> Figure | Missing:
    """Documents by length, in the buckets that they were counted in."""
    if not sequences.length_buckets:
        return Missing("Sequence lengths", "the lengths of the sequences were not counted")
    bounds = sorted(sequences.length_buckets, key=int)
    names = [f"≤ {int(bound):,}" for bound in bounds]
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
                "x": names,
                "y": [sequences.length_buckets[bound] for bound in bounds],
                "marker": {"color": "#65b5f4"},
                "hovertemplate": "%{x} tokens: %{y:,} documents<extra></extra>",
            }
        ],
        {
            "hovermode": "closest",
            "bargap": 0.08,
            "xaxis": axis("tokens of a document", type="category", showgrid=False),
            "yaxis": axis("documents", rangemode="tozero"),
        },
        260,
    )
