"""What was proven before a run, from its facts."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.records.preflight import Preflight

__all__ = ["preflight_account"]


def preflight_account(processes: Sequence[ProcessSpans]) -> Preflight | None:
    """Of the last process that was proven; None where none was.

    Args:
        processes: of rank 0.
    """
    facts = next((one.facts["preflight"] for one in reversed(processes) if "preflight" in one.facts), None)
    try:
        return None if facts is None else TypeAdapter(Preflight).validate_python(facts)
    except ValidationError:  # those of another version
        return None
