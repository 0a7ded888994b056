"""How much of the speed of one process several of them keep, each."""

from __future__ import annotations


def scaling_efficiency(
    rate: float | None, ranks: int, reference_rate: float | None, reference_ranks: int = 1
) -> float | None:
    """``(rate / ranks) / (reference_rate / reference_ranks)``: 1 where every rank is as fast as in the reference.

    With the same micro-batch per rank this is weak scaling: what communication, waits for late ranks, and cores, memory
    and disks that the ranks share take. It is above 1 where the reference was held up by something of its own.

    Hand-worked: 1500 tokens/s on 2 ranks against 1000 on one: 750 / 1000 = 0.75.

    Args:
        rate: tokens per second of all ranks together; None: not known.
        ranks: how many.
        reference_rate: of the run that it is held against; None: not known.
        reference_ranks: of that run.

    Returns:
        None where a rate is not known, or the reference did nothing.

    Raises:
        ValueError: fewer than one rank.
    """
    if ranks < 1 or reference_ranks < 1:
        raise ValueError(f"{ranks} and {reference_ranks} ranks; each must be at least 1")
    if rate is None or not reference_rate:
        return None
    return (rate / ranks) / (reference_rate / reference_ranks)
