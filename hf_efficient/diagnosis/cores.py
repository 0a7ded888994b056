"""The cores of a run's machine: who may use them, who wants them, and what waiting for them takes."""

from __future__ import annotations

from dataclasses import dataclass

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.machine_load import mean_in_the_loop

__all__ = [
    "CoreWait",
    "compute_cores",
    "core_wait",
    "cores_of_a_rank",
    "ranks_here",
    "threads_of_a_rank",
    "usable_cores",
]


def usable_cores(case: Case) -> float | None:
    """Cores that the processes of the run may use: by affinity, and by the quota of their container.

    Args:
        case: the run.

    Returns:
        None where they are not known.
    """
    cores = case.facts.get("system", {}).get("usable_cpus") or case.settings("host").get("cores")
    return float(cores) if cores else None


def ranks_here(case: Case) -> int:
    """Ranks that share them; all, where it was not told."""
    return int(case.facts.get("system", {}).get("ranks_here") or max(1, len(case.account.ranks)))


def cores_of_a_rank(case: Case) -> float | None:
    """Cores that a rank may reckon with; None where they are not known."""
    cores = usable_cores(case)
    return None if cores is None else cores / ranks_here(case)


def threads_of_a_rank(case: Case) -> int:
    """Threads that compute in it: torch's on a CPU, the one that launches on a GPU."""
    if case.settings("device").get("type") != "cpu":
        return 1
    return int(case.settings("host").get("torch_threads") or 1)


def compute_cores(case: Case) -> float:
    """Cores that training keeps busy in a rank, as far as it has them."""
    threads = float(threads_of_a_rank(case))
    return min(threads, cores_of_a_rank(case) or threads)


@dataclass(frozen=True)
class CoreWait:
    """How the main thread of rank 0 waited for a core, and who wanted the cores.

    Attributes:
        share: of its time that it was ready to run and waited.
        others: cores that processes of somebody else kept busy.
        own: cores that this run's threads and loader workers would keep busy if each had one.
        cores: that the run may use.
        stolen: cores that the host of a virtual machine took.
    """

    share: float
    others: float
    own: float
    cores: float
    stolen: float

    @property
    def too_many(self) -> float:
        """Cores that are wanted and not there."""
        return max(0.0, self.others + self.stolen + self.own - self.cores)

    @property
    def others_share(self) -> float:
        """Of what is wanted beyond the cores, the part of somebody else; the rest is the run's own excess."""
        excess = max(0.0, self.own - self.cores)
        foreign = self.others + self.stolen
        return foreign / (foreign + excess) if foreign > 0 else 0.0


def core_wait(case: Case) -> CoreWait | None:
    """See ``CoreWait``; None where the sampler did not tell, or the cores are not known.

    Args:
        case: the run.
    """
    cores, share = usable_cores(case), mean_in_the_loop(case, "main_thread_core_wait")
    others = mean_in_the_loop(case, "other_cores")
    if cores is None or share is None or others is None:
        return None
    own = threads_of_a_rank(case) * ranks_here(case) + (mean_in_the_loop(case, "children_cores") or 0.0)
    return CoreWait(share, others, own, cores, mean_in_the_loop(case, "stolen_cores") or 0.0)
