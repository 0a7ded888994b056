"""A prediction that could not be tested."""

from __future__ import annotations

from hf_efficient.recipe.rules.settings import Contradiction, Settings, reads

__all__ = ["confirming_reads_records"]


@reads("efficiency.confirms", "efficiency.record_steps")
def confirming_reads_records(settings: Settings) -> list[Contradiction]:
    """What a run took is told by its records."""
    efficiency = settings.recipe.efficiency
    if efficiency.confirms is None or efficiency.record_steps:
        return []
    message = "is set, but `efficiency.record_steps: false` keeps no record that it could be told by."
    return [("efficiency.confirms", message, "Remove it, or the false.")]
