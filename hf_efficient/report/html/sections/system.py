"""The machine over the time of a run, below the phases of the same axis."""

from __future__ import annotations

from hf_efficient.records.series import SystemSeries
from hf_efficient.report.html.sections.section import Section
from hf_efficient.report.plots.figure import Figure, Missing
from hf_efficient.report.plots.system.cores import cores_figure
from hf_efficient.report.plots.system.flows import disk_figure, host_memory_figure, network_figure
from hf_efficient.report.plots.system.gpu import gpu_figure
from hf_efficient.report.plots.system.phases_over_time import phases_over_time
from hf_efficient.report.run_data import RunData

__all__ = ["system_section"]

_NOT_READ = "the sampler read nothing of it"


def system_section(run: RunData) -> Section | None:
    """Phases, processor, GPUs, host memory, disks, network; None where no sampler ran."""
    series, account = run.series, run.account
    if series is None or not len(series.system):
        return None
    found = [
        cores_figure(account, series, run.cpus) or Missing("Processor", _NOT_READ),
        *(gpu_figure(account, series, gpu, f"system-gpu-{gpu}") for gpu in series.system.gpus),
        host_memory_figure(account, series),
        disk_figure(account, series) or _quiet(series.system, "Disks", "disk_read_bytes_per_second"),
        network_figure(account, series) or _quiet(series.system, "Network", "network_sent_bytes_per_second"),
    ]
    figures: list[Figure | Missing] = [phases_over_time(account, series), *(one for one in found if one is not None)]
    return Section("system", "The machine beside the phases", figures, short="Machine", template="figures")


def _quiet(system: SystemSeries, title: str, counter: str) -> Missing:
    """That nothing moved, which is not the same as that nobody looked."""
    return Missing(title, "nothing moved" if counter in system.host else _NOT_READ)
