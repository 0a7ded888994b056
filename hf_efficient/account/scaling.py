"""Runs on different numbers of ranks against the first of them."""

from __future__ import annotations

from collections.abc import Sequence

from hf_efficient.estimate.scaling import scaling_efficiency
from hf_efficient.records import RunAccount

__all__ = ["scaling_of"]


def scaling_of(accounts: Sequence[RunAccount]) -> list[float | None]:
    """Scaling efficiency of each run against the first, the usual one being of one process.

    In tokens without padding of all ranks, or in all tokens computed where one of the two runs does not know those.

    Args:
        accounts: at least one.
    """
    first = accounts[0]
    return [_against(account, first) for account in accounts]


def _against(account: RunAccount, first: RunAccount) -> float | None:
    ranks, reference = max(1, len(account.ranks)), max(1, len(first.ranks))
    real = scaling_efficiency(
        account.tokens.non_padding_tokens_per_second, ranks, first.tokens.non_padding_tokens_per_second, reference
    )
    if real is not None:
        return real
    return scaling_efficiency(
        account.tokens.processed_tokens_per_second, ranks, first.tokens.processed_tokens_per_second, reference
    )
