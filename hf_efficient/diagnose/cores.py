"""The cores of a run's machine, as far as one of its processes may reckon with them."""

from __future__ import annotations

from hf_efficient.diagnose.case import Case

__all__ = ["compute_cores", "cores_of_a_rank"]


def cores_of_a_rank(case: Case) -> float | None:
    """Cores that it may use, shared evenly with the other ranks, which are taken to be on its machine.

    Args:
        case: the run.

    Returns:
        None where they are not known.
    """
    cores = case.settings("host").get("cores")
    return float(cores) / max(1, len(case.account.ranks)) if cores else None


def compute_cores(case: Case) -> float:
    """Cores that training keeps busy: as many as torch has threads on a CPU, the one that launches on a GPU."""
    if case.settings("device").get("type") != "cpu":
        return 1.0
    threads = float(case.settings("host").get("torch_threads") or 1)
    return min(threads, cores_of_a_rank(case) or threads)
