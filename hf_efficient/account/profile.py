"""What the instruments of a run found and cost, from its facts and the tables beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.profile_files import tables
from hf_efficient.records import (
    FunctionTable,
    HostMemoryTable,
    InstrumentAccount,
    LineTable,
    MemorySnapshot,
    OperatorTable,
    ProfileAccount,
)

__all__ = ["profile_account"]


def profile_account(processes: Sequence[ProcessSpans], directory: Path) -> ProfileAccount | None:
    """Of the last process that had instruments; None where none had.

    Args:
        processes: of rank 0.
        directory: the ``efficiency`` folder.
    """
    facts: Mapping[str, Any] = next((one.facts["profile"] for one in reversed(processes) if "profile" in one.facts), {})
    instruments = [found for found in (_instrument(name, told) for name, told in facts.items()) if found is not None]
    if not instruments:
        return None
    files = [file for instrument in instruments for file in instrument.files]
    return ProfileAccount(
        instruments,
        operators=next(iter(tables(directory, files, "operators", OperatorTable)), None),
        memory=tables(directory, files, "memory", MemorySnapshot),
        functions=tables(directory, files, "python", FunctionTable),
        lines=next(iter(tables(directory, files, "lines", LineTable)), None),
        host_memory=next(iter(tables(directory, files, "host_memory", HostMemoryTable)), None),
    )


def _instrument(name: str, told: Any) -> InstrumentAccount | None:
    try:
        return TypeAdapter(InstrumentAccount).validate_python({**told, "name": name})
    except (TypeError, ValidationError):  # another topic's facts, or those of another version
        return None
