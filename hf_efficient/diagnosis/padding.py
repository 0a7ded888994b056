"""How much padding other batches of the same lengths would have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

__all__ = ["grouped_padding_share", "mixed_padding_share"]

_MEGA_BATCHES = 50
_MOST = 50_000
_SEED = 0


def grouped_padding_share(length_buckets: Mapping[str, int], rows: int | None) -> float | None:
    """Share of padding where examples of like length share a batch.

    As transformers' sampler does: shuffled, in stretches of fifty batches, each sorted by length. A document of a
    bucket is taken to lie between the bound before and its own, evenly.

    Args:
        length_buckets: upper bound in tokens, as text, to documents.
        rows: of a batch.

    Returns:
        None without lengths or rows.
    """
    if not length_buckets or not rows:
        return None
    lengths = _shuffled(length_buckets)
    stretch = rows * min(_MEGA_BATCHES, max(1, len(lengths) // (rows * 4)))
    return _padding_share(lengths, rows, stretch)


def mixed_padding_share(length_buckets: Mapping[str, int], rows: int | None) -> float | None:
    """Share of padding where batches are drawn as they come.

    Args:
        length_buckets, rows: as of ``grouped_padding_share``.

    Returns:
        None without lengths or rows.
    """
    if not length_buckets or not rows:
        return None
    return _padding_share(_shuffled(length_buckets), rows, rows)


def _shuffled(length_buckets: Mapping[str, int]) -> np.ndarray:
    lengths = _lengths(length_buckets)
    np.random.default_rng(_SEED).shuffle(lengths)
    return lengths


def _padding_share(lengths: np.ndarray, rows: int, stretch: int) -> float:
    """Of batches of so many rows, each stretch sorted before it is cut into them."""
    held = positions = 0.0
    for start in range(0, len(lengths), stretch):
        ordered = np.sort(lengths[start : start + stretch])[::-1]
        for first in range(0, len(ordered), rows):
            batch = ordered[first : first + rows]
            held += float(batch.sum())
            positions += float(batch.max()) * len(batch)
    return 1 - held / positions


def _lengths(buckets: Mapping[str, int]) -> np.ndarray:
    counts = sorted((int(bound), count) for bound, count in buckets.items())
    total = sum(count for _, count in counts)
    keep = min(1.0, _MOST / total)
    found = []
    for bound, count in counts:
        low = bound / 2 ** (1 / 4)
        found.append(np.linspace(low, bound, max(1, round(count * keep))))
    return np.concatenate(found)
