"""Who keeps the cores of this machine busy."""

from __future__ import annotations

import os

import psutil

from hf_efficient.measure.core_wait import core_wait_of
from hf_efficient.measure.probes.family import children_of, cpu_seconds_of, siblings
from hf_efficient.measure.probes.probe import Rates

__all__ = ["CoresProbe"]

_IDLE = ("idle", "iowait", "guest", "guest_nice", "steal")  # guests are in user; what a host steals nobody here has


class CoresProbe:
    """Figures in cores: 1.5 are one and a half of them, busy all the time.

        process_cores         this process, without its children
        children_cores        its children: loader workers, tokenizers
        ranks_cores           the other ranks of the same launch on this machine, with their children
        other_cores           everybody else on the machine, this container or not
        busy_cores            all of them
        busiest_core          the busiest one; ``core_loads`` has each
        stolen_cores          what the host of a virtual machine took
        io_wait_cores         idle while a disk was waited for
        load_1_minute         the system's load average
        main_thread_core_wait share of its time that the main thread was ready to run and waited for a core
        threads, children     how many this process has

    CPU times are told in hundredths of a second, so over a second a figure is good to about 0.01.

    Attributes:
        core_loads: of the last reading, each core's share, in percent.
    """

    name = "load of the processor"

    def __init__(self) -> None:
        self.core_loads: list[int] = []
        self._rates, self._cores, self._me = Rates(), Rates(), psutil.Process()
        self._core_wait = core_wait_of(os.getpid())  # Linux: the id of the main thread

    def read(self, at: float) -> dict[str, float]:
        """See above."""
        children, ranks = children_of(os.getpid()), siblings()
        own, waited = cpu_seconds_of([os.getpid()])
        counters = {
            "process_cores": own,
            "children_cores": waited + sum(cpu_seconds_of(children)),
        }
        if ranks:
            workers = [pid for rank in ranks for pid in children_of(rank)]
            counters["ranks_cores"] = sum(cpu_seconds_of(ranks)) + sum(cpu_seconds_of(workers))
        if self._core_wait is not None:
            counters["main_thread_core_wait"] = self._core_wait()
        found = self._rates.of(at, counters)
        if "main_thread_core_wait" in found:  # the kernel counts a wait when it ends, also what came before the reading
            found["main_thread_core_wait"] = min(1.0, found["main_thread_core_wait"])
        machine = self._machine(at)
        if "busy_cores" in machine and "process_cores" in found:
            known = sum(found.get(name, 0.0) for name in ("process_cores", "children_cores", "ranks_cores"))
            machine["other_cores"] = max(0.0, machine["busy_cores"] - known)
        rounded = {name: round(value, 3) for name, value in {**found, **machine}.items()}
        return {**rounded, "threads": self._me.num_threads(), "children": len(children)}

    def _machine(self, at: float) -> dict[str, float]:
        counters: dict[str, float] = {"stolen_cores": 0.0, "io_wait_cores": 0.0}
        cores = psutil.cpu_times(percpu=True)
        for number, times in enumerate(cores):
            counters[f"{number}"] = sum(times) - sum(getattr(times, name, 0.0) for name in _IDLE)
            counters["stolen_cores"] += getattr(times, "steal", 0.0)
            counters["io_wait_cores"] += getattr(times, "iowait", 0.0)
        rates = self._cores.of(at, counters)
        loads = [min(1.0, rates[f"{number}"]) for number in range(len(cores)) if f"{number}" in rates]
        self.core_loads = [round(100 * load) for load in loads]
        found: dict[str, float] = {name: rates[name] for name in ("stolen_cores", "io_wait_cores") if name in rates}
        if loads:
            found |= {"busy_cores": sum(loads), "busiest_core": max(loads)}
        if hasattr(os, "getloadavg"):
            found["load_1_minute"] = os.getloadavg()[0]
        return found
