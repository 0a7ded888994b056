"""What a run had spent before this process: the processes that its records tell of."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from hf_efficient.accounting.money import cost_of_processes
from hf_efficient.accounting.processes import ProcessSpans, read_processes
from hf_efficient.accounting.run_records import read_system
from hf_efficient.accounting.system import once_each
from hf_efficient.errors import OutputError
from hf_efficient.estimate.cost import cost_usd
from hf_efficient.run_dir.paths import records_path

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Earlier:
    """Sums over the earlier processes of a run, on rank 0.

    Attributes:
        wall_seconds: their wall time, of one that was killed until its last sign of life.
        evaluations, evaluation_seconds: how many evaluations they did, and how long those took together.
        saves, save_seconds: the same of their checkpoints.
        joules: energy of all ranks' meters; None where nothing told it.
        cost_usd: each process at the price that it stated; None where one of them states none.
    """

    wall_seconds: float = 0.0
    evaluations: int = 0
    evaluation_seconds: float = 0.0
    saves: int = 0
    save_seconds: float = 0.0
    joules: float | None = 0.0
    cost_usd: float | None = None

    def cost_at(self, price_usd_per_hour: float | None) -> float | None:
        """What they cost; at this price where they state none; None where that is not known either."""
        return cost_usd(self.wall_seconds, price_usd_per_hour) if self.cost_usd is None else self.cost_usd


def read_earlier(directory: Path) -> Earlier:
    """Read what earlier processes left, before this process adds to it: spans of rank 0, samples of all ranks.

    Args:
        directory: the ``efficiency`` folder of the run.

    Returns:
        Zeros where nothing was recorded, or nothing that can be read (which is logged).
    """
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
