"""Which examples, how often: weights, caps and the held-out share.

Indices in, indices out, the same for a seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from hf_efficient.errors import DataError

__all__ = ["MOST_EXAMPLES", "capped", "check_weight", "held_out", "weighted"]

MOST_EXAMPLES = 100_000_000
"""Of one source in an epoch, copies included: their indices alone take a gigabyte."""


def check_weight(count: int, weight: float, key: str) -> None:
    """That so many examples with this weight fit into memory.

    Args:
        count: examples of the source.
        weight: how often an epoch sees each.
        key: of the source in the recipe, for the message.

    Raises:
        DataError: they come to more than ``MOST_EXAMPLES``.
    """
    if weight > 1 and count * weight > MOST_EXAMPLES:
        raise DataError(
            f"{key}.weight: {weight:g} times {count:,} examples are {count * weight:,.0f} per epoch, more than "
            f"{MOST_EXAMPLES:,}. Lower it; for more passes over all data raise train.num_train_epochs."
        )


def weighted(indices: Sequence[int], weight: float, seed: int | str) -> list[int]:
    """The indices as often as an epoch sees them.

    ``floor(weight)`` whole copies, then a random ``weight - floor(weight)`` of them, rounded to whole
    examples; at least one example in all.
    """
    copies = int(weight)
    rest = round((weight - copies) * len(indices))
    if copies == 0:
        rest = max(rest, 1)
    return list(indices) * copies + _drawn(indices, rest, seed)


def capped(indices: Sequence[int], most: int | None, seed: int | str) -> list[int]:
    """At most ``most`` of the indices, drawn at random, in their old order; all of them for None."""
    return list(indices) if most is None or most >= len(indices) else _drawn(indices, most, seed)


def held_out(count: int, fraction: float, seed: int | str) -> tuple[list[int], list[int]]:
    """A random split of ``range(count)`` into training and evaluation indices, each in order.

    The evaluation side gets ``fraction`` of them, rounded, and both sides at least one.

    Raises:
        DataError: there are fewer than two examples.
    """
    if count < 2:
        raise DataError(
            f"data.eval_fraction: {fraction} of {count} example cannot be held out: both sides need at "
            "least one. "
            "Name a data.eval source, or give more data."
        )
    evaluation = _drawn(range(count), min(max(round(fraction * count), 1), count - 1), seed)
    chosen = set(evaluation)
    return [index for index in range(count) if index not in chosen], evaluation


def _drawn(indices: Sequence[int], count: int, seed: int | str) -> list[int]:
    positions = random.Random(f"hf_efficient:{seed}").sample(range(len(indices)), count)
    return [indices[position] for position in sorted(positions)]
