"""Who kept the cores of the machine busy."""

from __future__ import annotations

from hf_efficient.records import RunAccount
from hf_efficient.records.series import Band, RunSeries
from hf_efficient.report.numbers import short_number
from hf_efficient.report.plots.figure import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, Figure, rounded
from hf_efficient.report.plots.run_axes import TimeAxis, time_axis
from hf_efficient.report.plots.system.curves import Curve, curves_figure, drawn_curves, known
from hf_efficient.units import share

__all__ = ["cores_figure"]

_STACKED = (
    ("process_cores", "this process", BLUE),
    ("children_cores", "its workers", GREEN),
    ("ranks_cores", "other ranks", PURPLE),
    ("other_cores", "others on the machine", ORANGE),
)


def cores_figure(account: RunAccount, series: RunSeries, cpus: int | None, name: str = "system-cores") -> Figure | None:
    """Areas of cores in use, the load average over them, and a line at all that there are.

    Args:
        account, series: of the run.
        cpus: of the machine; None: not known.
        name: id of the figure.

    Returns:
        None where nothing was read.
    """
    system, where = series.system, time_axis(account.time.wall_seconds)
    stacked = [
        Curve(label, band.mean, color, "%{y:.3~g} cores", more={"stackgroup": "cores", "fillcolor": color})
        for key, label, color in _STACKED
        if (band := system.host.get(key)) is not None
    ]
    load = system.host.get("load_1_minute", Band())
    lines = [Curve("load average, 1 minute", load.mean, GREY, "%{y:.3~g}", dash="dot")]
    traces = [*drawn_curves(stacked, system, where), *drawn_curves(lines if load.mean else [], system, where)]
    for trace in traces:
        if "stackgroup" in trace:
            trace["line"] = {**trace["line"], "width": 0}
    if traces and cpus:
        traces.append(_all(cpus, where))
    told = f"Cores in use, and by whom.{_most(system.host)}{f' The machine has {cpus:,}.' if cpus else ''}"
    return curves_figure(name, "Processor", told, traces, where, "cores", series.process_starts_seconds)


def _most(host: dict[str, Band]) -> str:
    held = [(label, known(host.get(key, Band()).high)) for key, label, _ in _STACKED]
    most = [(label, highs) for label, highs in held if any(highs)]
    told = f" At most: {', '.join(f'{label} {short_number(max(highs))}' for label, highs in most)}." if most else ""
    waits = known(host.get("main_thread_core_wait", Band()).mean)
    if waits and max(waits) > 0:
        told += f" The main thread waited for a core in up to {share(max(waits))} of its time."
    return told


def _all(cpus: int, where: TimeAxis) -> dict[str, object]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "all cores",
        "x": [0, where.end],
        "y": rounded([cpus, cpus]),
        "line": {"color": RED, "width": 1.5, "dash": "dash"},
        "hoverinfo": "skip",
    }
