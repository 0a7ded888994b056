"""What the user should know about the prepared data, in words."""

from __future__ import annotations

from collections.abc import Mapping

from hf_efficient.data.build import PreferenceData
from hf_efficient.data.stats import DataStats
from hf_efficient.units import count, share

__all__ = ["preference_remarks", "remarks"]


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
    return lines + _small(stats.small_sources)


def preference_remarks(data: PreferenceData, max_length: int | None) -> list[str]:
    """Likewise of preference pairs."""
    lines = []
    if data.dropped:
        pairs = "pair is" if data.dropped == 1 else "pairs are"
        lines.append(f"{count(data.dropped)} {pairs} left out: the prompt alone fills train.max_length {max_length}")
    return lines + _small(data.small_sources)


def _small(sources: Mapping[str, int] | None) -> list[str]:
    return [
        f"{source} contributes only {number} {'example' if number == 1 else 'examples'}"
        for source, number in (sources or {}).items()
    ]
