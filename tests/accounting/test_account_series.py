"""The series of hand-made records, worked out by hand."""

from __future__ import annotations

import dataclasses
import json

import msgspec
import pytest
from test_account_build import alive, end, lines, process, span, step, train

from hf_efficient.accounting.account import account_of, read_run
from hf_efficient.accounting.series import histogram
from hf_efficient.records.series import Band, Histogram, SystemSeries
from hf_efficient.records.steps import SequenceCounts, StepLoader, StepMemory, StepRecord, StepWork, TokenCounts


def full_step(number, start, wall, **more):
    phases = {"forward": 0.5, "backward": 0.25}
    record = StepRecord(
        segment=0,
        rank=0,
        step=number,
        epoch=None,
        wall_seconds=wall,
        started_at_seconds=start,
        phase_seconds=phases,
        micro_batches=1,
        tokens=TokenCounts(10, 8, 4),
        sequences=SequenceCounts(2, 3, 1, 4, {"4": 3}),
        work=StepWork(100, 120),
        memory=StepMemory(1000 * number, 2000),
        device_seconds={"forward": 0.125},
        waited_seconds={"evaluation": 0.0625},
        loader=StepLoader(batches=1, wait_seconds=0.0625, rows=2, bytes=80, fetched=1, fetch_seconds=0.03125),
    )
    return msgspec.structs.replace(record, **more).to_json()


def reading(number, at, **what):
    return {"schema_version": 1, "process": number, "at_seconds": at, **what}


@pytest.fixture
def resumed(tmp_path):
    """A process of five seconds and one that began at 100 on its own clock."""
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), end(5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 1.0, forward=0.75, evaluation=0.25), step(2, 1.5, 0.5, forward=0.5))
    lines(tmp_path / "spans.jsonl", process(1, began=100.0), train(1, 101.0, 1), end(104.0, 1))
    lines(tmp_path / "steps.jsonl", step(2, 0.25, 2.0, segment=1, tokens=(10, None, 4), forward=1.5))
    return tmp_path


def test_a_resumed_run_has_one_axis_without_a_gap(resumed):
    found = read_run(resumed).series
    assert found.process_starts_seconds == [0.0, 5.0]
    steps = found.steps
    assert (steps.segment, steps.steps) == ([0, 0, 1], [1, 1, 1])
    assert (steps.first_step, steps.last_step) == ([1, 2, 2], [1, 2, 2])
    assert steps.started_at_seconds == [2.5, 3.5, 6.25]  # of the second process: 5 + (101 - 100) + 0.25
    assert steps.wall_seconds == [1.0, 0.5, 2.0]
    assert steps.step_seconds_min == steps.step_seconds_mean == steps.step_seconds_max == [0.75, 0.5, 2.0]
    assert steps.phase_seconds == {
        "forward": [0.75, 0.5, 1.5],
        "evaluation": [0.25, 0.0, 0.0],
        "unattributed": [0.0, 0.0, 0.5],
    }
    assert list(steps.phase_seconds) == ["forward", "evaluation", "unattributed"]
    assert (steps.processed_tokens, steps.non_padding_tokens) == ([10, 10, 10], [8, 8, None])
    assert steps.samples == steps.model_flops == steps.loss == steps.peak_allocated_bytes == [None] * 3
    assert steps.device_seconds == {}
    assert found.system == SystemSeries()
    assert read_run(resumed)[1:] == (account_of(resumed), found)


def test_the_load_of_the_machine_and_its_gpus(tmp_path, monkeypatch):
    """Three readings in two buckets; the third tells less."""
    monkeypatch.setattr("hf_efficient.accounting.columns.MOST_BUCKETS", 2)
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), end(5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 1.0))
    busy, idle = {"utilization_percent": 90, "sm_clock_mhz": 1000}, {"utilization_percent": 10}
    lines(
        tmp_path / "system.jsonl",
        reading(0, 1.0, host={"busy_cores": 1.5}, core_loads=[100, 50], gpus={"0": busy}, throttled={"0": ["thermal"]}),
        reading(0, 2.0, host={"busy_cores": 0.5, "threads": 7}, core_loads=[0, 50], gpus={"0": idle}),
        reading(0, 3.0, host={}),
    )
    found = read_run(tmp_path).series.system
    assert found.host == {
        "busy_cores": Band([0.5, None], [1.0, None], [1.5, None]),
        "threads": Band([7, None], [7.0, None], [7, None]),
    }
    assert found.core_loads == [Band([0, None], [50.0, None], [100, None]), Band([50, None], [50.0, None], [50, None])]
    assert found.gpus == {
        "0": {
            "utilization_percent": Band([10, None], [50.0, None], [90, None]),
            "sm_clock_mhz": Band([1000, None], [1000.0, None], [1000, None]),
        }
    }
    assert found.throttled == {"0": {"thermal": [0.5, 0.0]}}


def test_a_figure_that_is_none_is_no_sample(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), end(5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 1.0))
    lines(
        tmp_path / "system.jsonl",
        reading(0, 1.0, host={"busy_cores": float("inf")}),
        reading(0, 2.0, host={"busy_cores": 2.0}),
    )
    assert read_run(tmp_path).series.system.host["busy_cores"].high == [2.0]


def test_steps_are_put_together_without_losing_extremes(tmp_path, monkeypatch):
    """Seven steps in at most three buckets: four in one, three in the other."""
    monkeypatch.setattr("hf_efficient.accounting.columns.MOST_BUCKETS", 3)
    losses = {2: 3.0, 3: 9.0, 4: float("nan"), 6: 2.5}
    walls = [1.0, 5.0, 1.0, 1.0, 2.0, 1.0, 3.0]
    starts = [sum(walls[:index]) for index in range(7)]
    written = [
        full_step(index + 1, starts[index], wall, loss=losses.get(index + 1), grad_norm=[0.5, 7.0, 1.0][index % 3])
        for index, wall in enumerate(walls)
    ]
    written[6]["sequences"] = None
    lines(tmp_path / "steps.jsonl", *written)
    steps = read_run(tmp_path).series.steps
    assert {name: value for name, value in dataclasses.asdict(steps).items() if name != "learning_rate"} == {
        "segment": [0, 0],
        "steps": [4, 3],
        "first_step": [1, 5],
        "last_step": [4, 7],
        "started_at_seconds": [0.0, 8.0],
        "wall_seconds": [8.0, 6.0],
        "step_seconds_min": [1.0, 1.0],
        "step_seconds_mean": [2.0, 2.0],
        "step_seconds_max": [5.0, 3.0],
        "phase_seconds": {"forward": [2.0, 1.5], "backward": [1.0, 0.75], "unattributed": [5.0, 3.75]},
        "processed_tokens": [40, 30],
        "non_padding_tokens": [32, 24],
        "loss_bearing_tokens": [16, 12],
        "samples": [12, None],
        "model_flops": [400, 300],
        "hardware_flops": [480, 360],
        "loss": [9.0, 2.5],  # the last finite one
        "loss_min": [3.0, 2.5],
        "loss_max": [9.0, 2.5],
        "grad_norm": [0.5, 0.5],
        "grad_norm_max": [7.0, 7.0],
        "not_finite": [1, 0],
        "peak_allocated_bytes": [4000, 7000],
        "peak_reserved_bytes": [2000, 2000],
        "device_seconds": {"forward": [0.5, 0.375]},
        "loader_seconds": {"wait_seconds": [0.25, 0.1875], "fetch_seconds": [0.125, 0.09375]},
        "ready_batches": [None, None],
    }
    assert steps.learning_rate == [None, None]
    assert len(steps) == 2


def test_older_records_without_spans_lie_end_to_end(tmp_path):
    lines(tmp_path / "steps.jsonl", step(1, 5.0, 2.0), step(2, 7.0, 1.0), step(3, 9.0, 1.0, segment=1))
    assert read_run(tmp_path).series.steps.started_at_seconds == [0.0, 2.0, 3.0]


def test_the_distribution_leaves_the_warm_up_out(tmp_path):
    """Of eight steps three are warm-up; the square root of five, rounded up, is three bins from 1 to 4."""
    lines(tmp_path / "steps.jsonl", *[step(n + 1, 0.0, wall) for n, wall in enumerate((9, 9, 9, 1, 1, 2, 3, 4))])
    assert read_run(tmp_path).series.step_seconds == Histogram("linear", [1.0, 2.0, 3.0, 4.0], [2, 1, 2])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Histogram()),
        ([2.0, 2.0], Histogram("linear", [2.0, 2.0], [2])),
        ([1.0, 4.0], Histogram("linear", [1.0, 2.5, 4.0], [1, 1])),
        ([1.0, 16.0, 5.0, 2.0], Histogram("log", [1.0, 4.0, 16.0], [2, 2])),
        ([0.0, 16.0], Histogram("linear", [0.0, 8.0, 16.0], [1, 1])),
    ],
)
def test_histograms(values, expected):
    assert histogram(values) == expected


def test_a_histogram_has_at_most_sixty_bins():
    found = histogram([float(value) for value in range(10_001)])
    assert (len(found.counts), sum(found.counts), found.edges[-1]) == (60, 10_001, 10_000.0)


def test_the_system_over_both_processes(resumed, monkeypatch):
    """Five readings in at most three buckets; one process ended, the other one died."""
    monkeypatch.setattr("hf_efficient.accounting.columns.MOST_BUCKETS", 3)
    lines(
        resumed / "system.jsonl",
        reading(0, 1.0, rss_bytes=100, watts={"GPU 0": 200.0}),
        reading(0, 2.0, rss_bytes=500, watts={"GPU 0": 300.0, "GPU 1": 10.0}, device_allocated_bytes=7),
        reading(0, 3.0, rss_bytes=300),
        reading(1, 100.5, rss_bytes=50, host_available_bytes=9000),
        reading(7, 1.0, rss_bytes=1),  # a process that left no spans
    )
    lines(resumed / "spans.jsonl", alive(105.0, 104.0, 1))
    found = read_run(resumed).series.system
    assert found == SystemSeries(
        process=[0, 0, 1],
        started_at_seconds=[1.0, 3.0, 5.5],
        ended_at_seconds=[2.0, 3.0, 5.5],
        rss_bytes=Band([100, 300, 50], [300.0, 300.0, 50.0], [500, 300, 50]),
        host_available_bytes=Band([None, None, 9000], [None, None, 9000.0], [None, None, 9000]),
        device_allocated_bytes=Band([7, None, None], [7.0, None, None], [7, None, None]),
        device_reserved_bytes=Band(*[[None] * 3] * 3),
        watts={
            "GPU 0": Band([200.0, None, None], [250.0, None, None], [300.0, None, None]),
            "GPU 1": Band([10.0, None, None], [10.0, None, None], [10.0, None, None]),
        },
    )
    assert len(found) == 3


def test_a_broken_reading_is_left_out(resumed):
    lines(resumed / "system.jsonl", reading(0, 1.0, rss_bytes=5), {"process": 0}, reading(0, 2.0, rss_bytes="many"))
    assert read_run(resumed).series.system.rss_bytes == Band([5], [5.0], [5])
    assert "a part of system.jsonl" in [gap.what for gap in account_of(resumed).not_measured]


def test_a_long_run_keeps_its_sums_and_extremes_in_two_thousand_buckets(tmp_path):
    count, slow = 9000, 4321
    with (tmp_path / "steps.jsonl").open("w") as file:
        for number in range(1, count + 1):
            file.write(json.dumps(step(number, number - 1.0, 30.0 if number == slow else 1.0, forward=0.5)) + "\n")
    steps = read_run(tmp_path).series.steps
    assert len(steps) == 1125  # of eight steps each: 4500 and 2250 buckets are too many
    assert (sum(steps.steps), sum(steps.processed_tokens)) == (count, 10 * count)
    assert sum(steps.phase_seconds["forward"]) == count * 0.5
    assert max(steps.step_seconds_max) == 30.0
    assert steps.step_seconds_max.index(30.0) == (slow - 1) // 8
