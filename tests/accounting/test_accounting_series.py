"""The series of hand-made records, worked out by hand."""

import dataclasses
from dataclasses import asdict

import msgspec
import pytest
from made_records import alive, end, full_step, lines, process, reading, span, step, train

from hf_efficient.accounting.account import account_of, account_run
from hf_efficient.accounting.series import histogram, per_step, tokens_per_second
from hf_efficient.accounting.steps import LOADER_SECONDS
from hf_efficient.records.account import Band, Histogram, StepSeries, SystemSeries
from hf_efficient.records.steps import StepLoader


@pytest.fixture
def resumed(tmp_path):
    """A process of five seconds and one that began at 100 on its own clock."""
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), end(5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 1.0, forward=0.75, evaluation=0.25), step(2, 1.5, 0.5, forward=0.5))
    lines(tmp_path / "spans.jsonl", process(1, began=100.0), train(1, 101.0, 1), end(104.0, 1))
    lines(tmp_path / "steps.jsonl", step(2, 0.25, 2.0, segment=1, tokens=(10, None, 4), forward=1.5))
    return tmp_path


def test_a_resumed_run_has_one_axis_without_a_gap(resumed):
    found = account_run(resumed).series
    assert found.process_starts_seconds == [0.0, 5.0]
    steps = found.steps
    assert (steps.segment, steps.steps) == ([0, 0, 1], [1, 1, 1])
    assert (steps.first_step, steps.last_step) == ([1, 2, 2], [1, 2, 2])
    assert steps.started_at_seconds == [2.5, 3.5, 6.25]  # of the second process: 5 + (101 - 100) + 0.25
    assert steps.wall_seconds == [1.0, 0.5, 2.0]
    assert steps.step_seconds_mean == [0.75, 0.5, 2.0]
    phases = {"forward": [0.75, 0.5, 1.5], "evaluation": [0.25, 0.0, 0.0], "unattributed": [0.0, 0.0, 0.5]}
    assert list(steps.phase_seconds.items()) == list(phases.items())
    assert (steps.processed_tokens, steps.non_padding_tokens) == ([10, 10, 10], [8, 8, None])
    assert steps.loss == [None] * 3
    assert found.system == SystemSeries()


def test_the_load_of_the_machine_and_its_gpus(tmp_path, monkeypatch):
    """Three readings in two buckets; the third tells less."""
    monkeypatch.setattr("hf_efficient.accounting.steps.MOST_BUCKETS", 2)
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), end(5.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.5, 1.0))
    busy, idle = {"utilization_percent": 90, "sm_clock_mhz": 1000}, {"utilization_percent": 10}
    lines(
        tmp_path / "system.jsonl",
        reading(0, 1.0, host={"busy_cores": 1.5}, gpus={"0": busy}, throttled={"0": ["thermal"]}),
        reading(0, 2.0, host={"busy_cores": 0.5, "threads": 7}, gpus={"0": idle}),
        reading(0, 3.0, host={}),
    )
    found = account_run(tmp_path).series.system
    assert found.host == {
        "busy_cores": Band([0.5, None], [1.0, None], [1.5, None]),
        "threads": Band([7, None], [7.0, None], [7, None]),
    }
    assert found.gpus == {
        "0": {
            "utilization_percent": Band([10, None], [50.0, None], [90, None]),
            "sm_clock_mhz": Band([1000, None], [1000.0, None], [1000, None]),
        }
    }
    assert found.throttled == {"0": {"thermal": [0.5, 0.0]}}


def test_steps_are_put_together_without_losing_extremes(tmp_path, monkeypatch):
    """Seven steps in at most three buckets: four in one, three in the other."""
    monkeypatch.setattr("hf_efficient.accounting.steps.MOST_BUCKETS", 3)
    losses = {2: 3.0, 3: 9.0, 4: float("nan"), 6: 2.5}
    walls = [1.0, 5.0, 1.0, 1.0, 2.0, 1.0, 3.0]
    starts = [sum(walls[:index]) for index in range(7)]
    written = [
        full_step(index + 1, starts[index], wall, loss=losses.get(index + 1), grad_norm=[0.5, 7.0, 1.0][index % 3])
        for index, wall in enumerate(walls)
    ]
    written[6]["sequences"] = None
    lines(tmp_path / "spans.jsonl", process(), train(0, 0.0))
    lines(tmp_path / "steps.jsonl", *written)
    steps = account_run(tmp_path).series.steps
    assert dataclasses.asdict(steps) == {
        "segment": [0, 0], "steps": [4, 3], "first_step": [1, 5], "last_step": [4, 7],
        "started_at_seconds": [0.0, 8.0], "wall_seconds": [8.0, 6.0],
        "step_seconds_mean": [2.0, 2.0],
        "phase_seconds": {"forward": [2.0, 1.5], "backward": [1.0, 0.75], "unattributed": [5.0, 3.75]},
        "processed_tokens": [40, 30], "non_padding_tokens": [32, 24], "target_tokens": [16, 12],
        "loss": [9.0, 2.5],  # the last finite one
        "loss_min": [3.0, 2.5], "loss_max": [9.0, 2.5], "learning_rate": [None, None],
        "grad_norm": [0.5, 0.5], "not_finite": [1, 0],
        "preferences": {},
    }  # fmt: skip
    assert len(steps) == 2


def test_the_distribution_leaves_the_warm_up_out(tmp_path):
    """Of eight steps three are warm-up; the square root of five, rounded up, is three bins from 1 to 4."""
    lines(tmp_path / "spans.jsonl", process(), train(0, 0.0))
    lines(tmp_path / "steps.jsonl", *[step(n + 1, 0.0, wall) for n, wall in enumerate((9, 9, 9, 1, 1, 2, 3, 4))])
    assert account_run(tmp_path).series.step_seconds == Histogram("linear", [1.0, 2.0, 3.0, 4.0], [2, 1, 2])


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


def test_the_system_over_both_processes(resumed, monkeypatch):
    """Five readings in at most three buckets; one process ended, the other one died."""
    monkeypatch.setattr("hf_efficient.accounting.steps.MOST_BUCKETS", 3)
    lines(
        resumed / "system.jsonl",
        reading(0, 1.0, rss_bytes=100, watts={"GPU 0": 200.0}),
        reading(0, 2.0, rss_bytes=500, watts={"GPU 0": 300.0, "GPU 1": 10.0}, device_allocated_bytes=7),
        reading(0, 3.0, rss_bytes=300),
        reading(1, 100.5, rss_bytes=50, host_available_bytes=9000),
        reading(7, 1.0, rss_bytes=1),  # a process that left no spans
    )
    lines(resumed / "spans.jsonl", alive(105.0, 104.0, 1))
    found = account_run(resumed).series.system
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


def test_rates_by_hand():
    """Three buckets of 4, 4 and 1 steps; the last does not know its tokens."""
    empty = {each.name: [] for each in dataclasses.fields(StepSeries)} | {"phase_seconds": {}}
    known = {"segment": [0, 0, 0], "steps": [4, 4, 1], "step_seconds_mean": [0.5, 0.0, 2.0]}
    tokens = {"processed_tokens": [1000, 0, None], "non_padding_tokens": [800, 10, None]}
    steps = StepSeries(**empty | known | tokens)
    assert tokens_per_second(steps) == [400.0, None, None]  # 800 / (4 * 0.5); no time; no tokens
    assert per_step([2.0, None, 3.0], steps) == [0.5, None, 3.0]


def loading(folder, *steps, facts=None):
    told = {"kind": "facts", "process": 0, "facts": {"loader": facts or {}}}
    lines(folder / "spans.jsonl", process(), span(0.0, imports=1.0), train(0, 1.0), told, end(9.0))
    lines(folder / "steps.jsonl", *steps)
    return folder


def loaded(number, at, **part):
    return {**step(number, at, 1.0), "loader": msgspec.to_builtins(StepLoader(**part))}


def test_a_loader_with_workers_by_hand(tmp_path):
    first = {"batches": 2, "wait_seconds": 1.5, "first_wait_seconds": 1.25, "start_seconds": 0.5, "ready": 1}
    work = {"fetched": 3, "fetch_seconds": 2.0, "fetch_cpu_seconds": 0.25, "collate_seconds": 0.5, "read_bytes": 4096}
    loading(
        tmp_path,
        loaded(1, 0.0, **first, **work, rows=8, bytes=100),
        loaded(2, 1.0, batches=2, wait_seconds=0.25, ready=5, rows=8, bytes=100, core_wait_seconds=0.125),
        facts={"workers": 2, "prefetch_factor": 4, "persistent_workers": False, "pin_memory": True},
    )
    told = account_of(tmp_path).loader
    nothing = dict.fromkeys((name for name in LOADER_SECONDS), 0.0)
    assert asdict(told) == nothing | {
        "steps": 2, "epochs": 1, "batches": 4, "rows": 16, "bytes": 200, "wait_seconds": 1.75,
        "first_wait_seconds": 1.25, "start_seconds": 0.5, "fetched": 3, "fetch_seconds": 2.0,
        "fetch_cpu_seconds": 0.25, "collate_seconds": 0.5, "core_wait_seconds": 0.125, "read_bytes": 4096,
        "mean_ready": 1.5, "workers": 2, "prefetch_factor": 4, "persistent_workers": False, "pin_memory": True,
    }  # fmt: skip
