"""What a run had spent before this process: the processes in its records."""

import logging
import math
from pathlib import Path

from hf_efficient.accounting.money import cost_of_processes
from hf_efficient.accounting.processes import ProcessSpans, read_processes
from hf_efficient.accounting.run_records import read_system
from hf_efficient.accounting.system import once_each
from hf_efficient.errors import OutputError
from hf_efficient.recording.live import Earlier
from hf_efficient.run_dir.paths import records_path

logger = logging.getLogger(__name__)


def read_earlier(directory: Path) -> Earlier:
    """Read what earlier processes left: spans of rank 0, samples of all ranks; zeros if unreadable (logged)."""
    try:
        found = read_processes(records_path(directory, "spans", 0))
        joules = _joules(directory) if found else 0.0
    except (OSError, OutputError) as error:
        logger.warning("What this run has spent so far cannot be read (%s): it counts from now.", error)
        return Earlier()
    walls = [one.last_at_seconds - one.began_at_seconds for one in found]
    evaluations, saves = _durations(found, "evaluation"), _durations(found, "save")
    return Earlier(
        wall_seconds=math.fsum(walls),
        evaluations=len(evaluations),
        evaluation_seconds=math.fsum(evaluations),
        saves=len(saves),
        save_seconds=math.fsum(saves),
        joules=joules,
        cost_usd=cost_of_processes(found, walls) if found else None,
    )


def _joules(directory: Path) -> float | None:
    metered = once_each(read_system(directory))
    return math.fsum(one.joules for one in metered) if metered else None


def _durations(processes: list[ProcessSpans], kind: str) -> list[float]:
    notes = (note.get("seconds") for one in processes for note in one.notes.get(kind, ()))
    return [float(seconds) for seconds in notes if isinstance(seconds, int | float)]
