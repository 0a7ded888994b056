"""More threads and workers of the run itself than it has cores."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.cores import CoreWait, core_wait, ranks_here, threads_of_a_rank
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["cpu_oversubscription"]

_TOO_MUCH = 0.10
_EXCESS = 0.5


def cpu_oversubscription(case: Case) -> Verdict:
    """Its own threads, ranks and loader workers want more cores than there are, and its main thread waits for one."""
    if case.first is None:
        return abstains("cpu_oversubscription", NO_STEPS)
    wait = core_wait(case)
    if wait is None:
        why = "the threads' wait for cores was not sampled"
        return abstains("cpu_oversubscription", why, "a run of some seconds on Linux, with EfficientTrainerMixin")
    own = wait.share * (1 - wait.others_share)
    if wait.own < wait.cores + _EXCESS or own < _TOO_MUCH:
        return None
    threads, ranks = threads_of_a_rank(case), ranks_here(case)
    processes = f" in each of {ranks} ranks" if ranks > 1 else ""
    title = f"torch computes with {threads} threads{processes}, beside loader workers, on {wait.cores:g} cores"
    # Other threads get on meanwhile, but all wait for the last; 16 threads on two cores lost a little more than this.
    saved = own * case.loop_seconds
    each = max(1, int(wait.cores // ranks))
    basis = f"the {share(own)} of its time that the main thread waits for a core"
    fewer = Remedy(
        f"let torch compute with {each} thread{'s' if each > 1 else ''} per rank: OMP_NUM_THREADS={each}"
        if threads * ranks > wait.cores
        else "load with fewer workers, or let torch compute with fewer threads (OMP_NUM_THREADS)",
        gain=case.gain(saved, basis),
    )
    return Finding(
        rule="cpu_oversubscription",
        title=title if wait.own > threads * ranks + _EXCESS else title.replace(", beside loader workers,", ""),
        severity="warning",
        confidence="likely",
        evidence=_evidence(wait, threads, ranks),
        cost=case.cost(saved),
        remedies=[fewer],
    )


def _evidence(wait: CoreWait, threads: int, ranks: int) -> list[Evidence]:
    host = "system.jsonl: host"
    return [
        Evidence("threads of torch", threads, "count", "spans.jsonl: settings.host.torch_threads"),
        Evidence("ranks on the machine", ranks, "count", "spans.jsonl: system.ranks_here"),
        Evidence("cores busy with loader workers", wait.own - threads * ranks, "count", f"{host}.children_cores"),
        Evidence("cores that the run may use", wait.cores, "count", "spans.jsonl: system.usable_cpus"),
        Evidence("main thread ready to run, without a core", wait.share, "share", f"{host}.main_thread_core_wait"),
        Evidence("cores busy with other processes", wait.others, "count", f"{host}.other_cores"),
    ]
