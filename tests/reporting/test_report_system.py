"""The machine over the time of a run: drawn by hand, and on the page."""

from __future__ import annotations

import dataclasses

from hand_made import NO_STEPS, series, steps
from page_reader import Page
from sample_findings import diagnosed, finding

from hf_efficient.records.series import Band, SystemSeries
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.html.run_sections import system_section
from hf_efficient.reporting.plots.figure import Missing
from hf_efficient.reporting.plots.findings import finding_figure
from hf_efficient.reporting.plots.system import (
    cores_figure,
    disk_figure,
    gpu_figure,
    host_memory_figure,
    network_figure,
    phases_over_time,
)

GIB = 2**30


def band(*values):
    return Band(list(values), list(values), list(values))


def system(**parts):
    """Two readings, at 1 s and at 3 s, of one process."""
    plain = {"process": [0, 0], "started_at_seconds": [1.0, 3.0], "ended_at_seconds": [1.0, 3.0]}
    return SystemSeries(**{**plain, **parts})


def seen(**parts):
    return series(steps(), system=system(**parts))


def drawn(figure):
    return {trace["name"]: trace for trace in figure.traces}


def test_phases_are_shares_as_wide_as_their_time(full_run):
    held = steps(
        steps=[1, 1],
        started_at_seconds=[10.0, 12.0],
        wall_seconds=[2.0, 4.0],
        phase_seconds={"forward": [1.0, 1.0], "evaluation": [0.0, 3.0]},
    )
    found = drawn(figure := phases_over_time(full_run.account, series(held)))
    assert (found["forward"]["x"], found["forward"]["width"]) == ([11.0, 14.0], [2.0, 4.0])
    assert (found["forward"]["y"], found["evaluation"]["y"]) == ([50.0, 25.0], [None, 75.0])
    assert (figure.x, figure.layout["yaxis"]["range"]) == ("time", [0, 100])
    assert isinstance(phases_over_time(full_run.account, series(NO_STEPS)), Missing)


def test_cores_stack_by_who_keeps_them_busy(full_run):
    host = {"process_cores": band(1.0, 1.5), "children_cores": band(0.0, 0.0), "other_cores": band(None, 6.5)}
    host |= {"load_1_minute": band(2.0, 9.0), "main_thread_core_wait": band(0.0, 0.25)}
    found = drawn(figure := cores_figure(full_run.account, seen(host=host), 8))
    assert list(found) == ["this process", "others on the machine", "load average, 1 minute", "all cores"]
    assert (found["this process"]["x"], found["this process"]["y"]) == ([1.0, 3.0], [1.0, 1.5])
    assert found["others on the machine"]["stackgroup"] == "cores"
    assert found["all cores"]["y"] == [8.0, 8.0]
    assert figure.summary == (
        "Cores in use, and by whom. At most: this process 1.5, others on the machine 6.5. The main thread waited for a "
        "core in up to 25% of its time. The machine has 8."
    )
    assert cores_figure(full_run.account, seen(), 8) is None


def test_disks_and_network_in_megabytes(full_run):
    host = {"disk_read_bytes_per_second": band(2e6, 8e6), "write_bytes_per_second": band(0.0, 5e5)}
    host |= {"disk_latency_milliseconds": band(None, 4.5), "network_sent_bytes_per_second": band(0.0, 0.0)}
    run = seen(host=host)
    found = drawn(figure := disk_figure(full_run.account, run))
    assert {name: trace["y"] for name, trace in found.items()} == {
        "read, all of the machine": [2.0, 8.0],
        "written by this run": [0.0, 0.5],
    }
    assert "At most: read, all of the machine 8.0 MB/s, written by this run 0.50 MB/s." in figure.summary
    assert figure.summary.endswith("A request took 4.5 ms at most, on average over a reading.")
    assert network_figure(full_run.account, run) is None  # nothing moved


def test_what_did_not_move_is_told_from_what_nobody_looked_at(full_run):
    quiet = {"network_sent_bytes_per_second": band(0.0, 0.0)}
    run = dataclasses.replace(full_run, series=seen(host=quiet, rss_bytes=band(GIB, GIB)))
    told = {one.title: one.why for one in system_section(run).figures if isinstance(one, Missing)}
    assert told == {
        "Processor": "the sampler read nothing of it",
        "Disks": "the sampler read nothing of it",
        "Network": "nothing moved",
    }
    assert system_section(dataclasses.replace(full_run, series=series(steps()))) is None
    assert system_section(dataclasses.replace(full_run, series=None)) is None


def test_memory_that_the_machine_had_left(full_run):
    run = seen(rss_bytes=band(GIB, 2 * GIB), host_available_bytes=band(7 * GIB, 5 * GIB))
    found = drawn(figure := host_memory_figure(full_run.account, run))
    assert found["held by this process"]["y"] == [1.0, 2.0]
    assert found["available to all"]["y"] == [7.0, 5.0]
    assert figure.summary == "Memory of the machine. At least 5.00 GiB were available."


def gpu(**parts):
    gpus = {"3": {"utilization_percent": band(90.0, 70.0), "sm_clock_mhz": band(1980.0, 1500.0)}}
    return seen(gpus=gpus, watts={"GPU 3": band(300.0, 350.0)}, **parts)


def test_a_gpu_in_panels_with_points_where_it_was_held_back(full_run):
    run = gpu(throttled={"3": {"thermal": [0.0, 0.5], "power_cap": [0.0, 0.0]}})
    found = drawn(figure := gpu_figure(full_run.account, run, "3", "a-gpu"))
    assert {name: trace["yaxis"] for name, trace in found.items()} == {
        "utilization": "y",
        "power": "y2",
        "clock of its processors": "y3",
        "held back": "y3",
    }
    assert (found["held back"]["x"], found["held back"]["y"]) == ([3.0], [1500.0])
    assert found["held back"]["customdata"] == ["its temperature 50%"]
    assert figure.summary == (
        "Read about once per second. 80% utilization on average. It was held back by its temperature in 25% of the "
        "readings."
    )
    domains = [figure.layout[axis]["domain"] for axis in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1.0
    assert domains[2][0] == 0.0
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    assert "held back" not in drawn(gpu_figure(full_run.account, gpu(), "3", "a-gpu"))
    assert gpu_figure(full_run.account, gpu(), "4", "a-gpu") is None


def test_all_plots_of_the_machine_begin_at_the_same_place(full_run):
    figures = [one for one in system_section(full_run).figures if not isinstance(one, Missing)]
    assert [one.id for one in figures] == [
        "phases-time",
        "system-cores",
        "system-gpu-0",
        "system-memory",
        "system-disks",
        "system-network",
    ]
    assert len({tuple(one.layout["margin"].items()) for one in figures}) == 1
    assert {one.x for one in figures} == {"time"}
    assert {tuple(one.layout["xaxis"]["range"]) for one in figures} == {(0, full_run.account.time.wall_seconds)}
    rows = [held for one in figures for name, held in one.layout.items() if name.startswith("yaxis")]
    assert not any(held["automargin"] for held in rows)


def test_findings_about_the_machine_show_it(full_run):
    run = dataclasses.replace(diagnosed(full_run), cpus=16)
    cores = finding_figure(1, finding("cpu_contention"), run)
    assert (cores.id, cores.title, cores.selectable) == ("finding-1-evidence", "Processor", False)
    hot = finding_figure(2, finding("throttling"), run)
    assert "It was held back by its temperature in 18.3% of the readings." in hot.summary
    cool = dataclasses.replace(run, series=gpu())
    assert finding_figure(2, finding("throttling"), cool).title == "Of the loop's time"


def test_the_section_on_the_page(full_run):
    page = Page(run_page(full_run))
    assert "The machine beside the phases Phases" in page.said
    assert "others on the machine 9.5. The main thread waited for a core in up to 12% of its time." in page.said
    assert page.ids("h2").index("time") + 1 == page.ids("h2").index("system")
