"""The file of a memory snapshot, read without trusting it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from hf_efficient.errors import OutputError, first_line

__all__ = ["read_snapshot"]


class _PlainData(pickle.Unpickler):
    """Snapshots hold numbers, texts, lists and mappings alone; a pickle that names anything else may run it."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a snapshot holds plain data")


def read_snapshot(path: Path) -> dict[str, Any]:
    """What ``torch.cuda.memory._dump_snapshot`` wrote.

    Raises:
        OutputError: it cannot be read, or is no snapshot.
    """
    try:
        with path.open("rb") as file:
            found = _PlainData(file).load()
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError) as error:
        raise OutputError(f"{path}: cannot be read as a memory snapshot: {first_line(error)}") from error
    if not isinstance(found, dict) or "segments" not in found:
        raise OutputError(
            f"{path}: is no memory snapshot; name a file that torch.cuda.memory._dump_snapshot, or "
            "efficiency.profile.memory, wrote"
        )
    return found
