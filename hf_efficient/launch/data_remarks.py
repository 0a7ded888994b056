"""What the user should know about the prepared data, in words."""

from __future__ import annotations

from hf_efficient.data.stats import DataStats
from hf_efficient.units import count, share

__all__ = ["remarks"]


def remarks(stats: DataStats, max_length: int | None) -> list[str]:
    """A line for everything that preparation changed or found odd; empty where there is nothing to say.

    Args:
        stats: of the training data.
        max_length: the recipe's ``train.max_length``, in tokens.
    """
    lines = []
    if stats.packs is not None and stats.fill_rate is not None:
        lines.append(f"packed into {count(stats.packs)} rows, {share(stats.fill_rate)} full")
    if stats.truncated:
        lines.append(
            f"{count(stats.truncated)} examples are cut to train.max_length {max_length} "
            f"(the longest has {count(stats.longest)} tokens)"
        )
    if stats.dropped_overlong:
        lines.append(
            f"{count(stats.dropped_overlong)} examples are left out: longer than train.max_length {max_length}"
        )
    if stats.dropped_masked:
        lines.append(f"{count(stats.dropped_masked)} examples are left out: after cutting, no token bears loss")
    if stats.empty:
        are = "example is" if stats.empty == 1 else "examples are"
        lines.append(f"{count(stats.empty)} {are} empty: a blank text, completion or last answer")
    if stats.masked == 1:
        lines.append("1 example has no token that bears loss: it costs time and teaches nothing")
    elif stats.masked:
        lines.append(f"{count(stats.masked)} examples have no token that bears loss: they cost time and teach nothing")
    for source, number in (stats.small_sources or {}).items():
        lines.append(f"{source} contributes only {number} {'example' if number == 1 else 'examples'}")
    return lines
