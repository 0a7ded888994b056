"""The other ranks of a launch, as their files show them: the account of all needs what the last one has written."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hf_efficient.account.reading import TAIL_BYTES, parse_line, records_path

__all__ = ["await_other_ranks"]

_LOOK_SECONDS = 0.01


def await_other_ranks(directory: Path, most_seconds: float = 3.0) -> bool:
    """Wait until the other ranks have told their end, too; ranks end within some hundredths of a second.

    Waits for those of this machine (``LOCAL_WORLD_SIZE``), which write where this rank does, and for those of other
    machines whose files are here. One that died never tells: hence the limit.

    Args:
        directory: of the run.
        most_seconds: how long.

    Returns:
        Whether all have.
    """
    until = time.monotonic() + most_seconds
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    for rank in range(1, int(os.environ.get("WORLD_SIZE", "1"))):
        path = records_path(directory, "spans", rank)
        while (rank < here or path.exists()) and not _has_ended(path):
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
    return True


def _has_ended(path: Path) -> bool:
    """Whether the last process of a rank has told its end; what it does after that may follow."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return False
    for line in reversed(lines):
        record = parse_line(line)
        if record is not None and record.get("kind") in ("end", "process"):
            return record["kind"] == "end"
    return False
