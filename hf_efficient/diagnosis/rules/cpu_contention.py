"""Cores that somebody else keeps busy."""

from __future__ import annotations

from hf_efficient.diagnosis.case import Case
from hf_efficient.diagnosis.cores import CoreWait, core_wait
from hf_efficient.diagnosis.machine_load import mean_in_the_loop
from hf_efficient.diagnosis.rule import NO_STEPS, Verdict, abstains
from hf_efficient.records.findings import Evidence, Finding, Remedy
from hf_efficient.units import share

__all__ = ["cpu_contention"]

_TOO_MUCH = 0.10
_SOMEBODY = 0.2


def cpu_contention(case: Case) -> Verdict:
    """A tenth of the loop or more its main thread is ready to run and waits for a core that others have."""
    if case.first is None:
        return abstains("cpu_contention", NO_STEPS)
    wait = core_wait(case)
    if wait is None:
        why = "who kept the cores busy while the loop ran was not sampled"
        return abstains("cpu_contention", why, "a run of some seconds on Linux, with EfficientTrainerMixin")
    lost = wait.share * wait.others_share
    if lost < _TOO_MUCH or wait.others + wait.stolen < _SOMEBODY:
        return None
    who = "other processes" if wait.others >= wait.stolen else "other virtual machines"
    title = (
        f"the training waits for a core in {share(lost)} of its time: {who} keep "
        f"{wait.others + wait.stolen:.1f} cores busy of {wait.cores:g}"
    )
    saved = lost * case.loop_seconds
    alone = Remedy(
        "give the run cores of its own: end what else runs, or hold both apart (taskset, a container's cpuset)",
        gain=case.gain(saved, "the time that the main thread waited; threads that wait for each other lose more"),
    )
    passive = Remedy(
        "where the cores must be shared, set OMP_WAIT_POLICY=PASSIVE: torch's threads then sleep while they wait for "
        "each other, and do not hold cores that the others need",
        costs="waking up takes some microseconds per operator",
    )
    return Finding(
        rule="cpu_contention",
        title=title,
        severity="warning",
        confidence="measured",
        evidence=_evidence(case, wait),
        cost=case.cost(saved),
        remedies=[alone, passive],
    )


def _evidence(case: Case, wait: CoreWait) -> list[Evidence]:
    host = "system.jsonl: host"
    found = [
        Evidence("main thread ready to run, without a core", wait.share, "share", f"{host}.main_thread_core_wait"),
        Evidence("cores busy with other processes", wait.others, "count", f"{host}.other_cores"),
        Evidence("cores taken by the machine's host", wait.stolen, "count", f"{host}.stolen_cores"),
        Evidence("cores that the run may use", wait.cores, "count", "spans.jsonl: system.usable_cpus"),
    ]
    own = mean_in_the_loop(case, "process_cores")
    if own is not None:
        found.append(Evidence("cores busy with this process", own, "count", f"{host}.process_cores"))
    loaded = case.first.loader.get("core_wait_seconds") if case.first is not None else None
    if loaded is not None:
        source = "steps.jsonl: loader.core_wait_seconds"
        found.append(Evidence("loading that waited for a core", float(loaded[loaded > 0].sum()), "seconds", source))
    return found
