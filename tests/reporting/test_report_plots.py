"""What is drawn, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hand_made import NO_STEPS, series, steps

from hf_efficient.records.account import StepTimes, TimeAccount
from hf_efficient.records.amounts import Evaluation, MemoryAccount, MemoryCategory, SequenceAccount, TokenAccount
from hf_efficient.records.series import Band, Histogram, SystemSeries
from hf_efficient.reporting.labels import PHASE_COLORS
from hf_efficient.reporting.plots.figure import Figure, LegendEntry, Missing, legend_of, rounded, span_data
from hf_efficient.reporting.plots.memory import memory_over_time
from hf_efficient.reporting.plots.steps import (
    compare_losses,
    compare_step_times,
    sequence_lengths,
    step_times,
    step_tokens,
    throughput,
    training_curve,
)
from hf_efficient.reporting.plots.system import power
from hf_efficient.reporting.plots.time import compare_phases, phase_shares, step_phases, time_bar

GIB = 2**30
TIMES = StepTimes(4, 1, "the first", 1.0, 1.0, 1.0, 1.0, 1.0)
NO_TOKENS = TokenAccount(None, None, None, None, None, None)


def drawn(figure):
    assert isinstance(figure, Figure)
    return {trace.get("name", ""): trace for trace in figure.traces}


def time(**phases):
    return TimeAccount(sum(phases.values()) + 1.0, phases, 1.0, 1.0, None, [])


def test_the_whole_run_is_one_bar():
    figure = time_bar(time(imports=2.0, forward=5.0, logging=0.0))
    found = drawn(figure)
    assert {name: trace["x"] for name, trace in found.items()} == {
        "start of Python, imports": [2.0],
        "forward": [5.0],
        "unattributed": [1.0],
    }
    assert found["forward"]["marker"]["color"] == PHASE_COLORS["forward"]
    assert figure.layout["xaxis"]["range"] == [0, 8.0]
    assert "8.0 s by phase" in figure.summary
    assert "Most: forward 5.0 s, start of Python, imports 2.0 s, unattributed 1.0 s." in figure.summary


def test_seconds_per_step_are_means_of_their_bucket():
    figure = step_phases(steps(steps=[2, 1], wall_seconds=[2.0, 1.0]), TIMES)
    found = drawn(figure)
    assert found["forward"]["y"] == [0.75, 0.75]
    assert found["forward"]["width"] == [2, 1]
    assert found["forward"]["type"] == "bar"
    assert "A point is the mean of up to 2 steps." in figure.summary
    assert "range" not in figure.layout["yaxis"]


def test_an_evaluation_does_not_flatten_the_steps():
    held = steps(
        wall_seconds=[1.0, 9.0, 1.0, 1.0], phase_seconds={"forward": [1.0] * 4, "evaluation": [0.0, 8.0, 0.0, 0.0]}
    )
    figure = step_phases(held, TIMES)
    assert figure.layout["yaxis"]["range"] == [0, 1.3]
    assert figure.summary.endswith("reach above the plot: “Whole” shows them.")
    assert drawn(figure)["evaluation"]["y"] == [None, 8.0, None, None]


def test_many_steps_are_areas():
    found = drawn(step_phases(steps(steps=[1] * 251), TIMES))
    assert {trace["type"] for trace in found.values()} == {"scatter"}
    assert {trace["stackgroup"] for trace in found.values()} == {"layers"}


def test_no_steps():
    assert step_phases(NO_STEPS, TIMES) == Missing("Per step", "no step was recorded")
    assert isinstance(throughput(NO_STEPS, NO_TOKENS, 1), Missing)
    assert isinstance(training_curve(NO_STEPS, []), Missing)
    assert isinstance(step_tokens(NO_STEPS, NO_TOKENS), Missing)
    assert span_data(NO_STEPS) is None


def test_memory_lines_break_between_processes_and_kinds_stand_while_it_trained(full_run):
    system = SystemSeries(
        process=[0, 0, 1],
        started_at_seconds=[1.0, 2.0, 4.0],
        ended_at_seconds=[1.0, 3.0, 5.0],
        rss_bytes=Band([0.0] * 3, [0.0] * 3, [GIB, 2 * GIB, 3.0 * GIB]),
        device_allocated_bytes=Band([None] * 3, [None] * 3, [None] * 3),
    )
    memory = MemoryAccount(
        3 * GIB,
        None,
        None,
        None,
        None,
        [MemoryCategory("weights", GIB, "exact"), MemoryCategory("adapter", 0, "exact")],
    )
    wall = dataclasses.replace(full_run.account.time, wall_seconds=6.0)
    account = dataclasses.replace(full_run.account, memory=memory, time=wall)
    held = steps(steps=[1, 1], started_at_seconds=[2.0, 5.0])
    figure = memory_over_time(account, series(held, system=system, process_starts_seconds=[0.0, 4.0]))
    found = drawn(figure)
    assert list(found) == ["weights", "host memory of the process"]
    assert found["host memory of the process"]["x"] == [1.0, 2.5, 2.5, 4.5]
    assert found["host memory of the process"]["y"] == [1.0, 2.0, None, 3.0]
    assert found["weights"]["x"] == [2.0, 2.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    assert found["weights"]["y"] == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert "At most: 3.00 GiB in the host's memory." in figure.summary
    assert isinstance(memory_over_time(account, series(held)), Missing)


def test_losses_rates_and_evaluations():
    held = steps(loss=[None, 3.0, None, 2.0], learning_rate=[None, 1e-4, None, 5e-5], not_finite=[0, 1, 0, 0])
    held = dataclasses.replace(held, loss_min=held.loss, loss_max=held.loss)
    evaluations = [Evaluation(0, {"loss": 3.5}), Evaluation(2, {"loss": None}), Evaluation(4, {"loss": 2.5}, 1.0)]
    figure = training_curve(held, evaluations)
    found = drawn(figure)
    assert (found["training loss"]["x"], found["training loss"]["y"]) == ([2.0, 4.0], [3.0, 2.0])
    assert (found["evaluation loss"]["x"], found["evaluation loss"]["y"]) == ([0.5, 4.5], [3.5, 2.5])
    assert found["learning rate"]["yaxis"] == "y2"
    assert [line["x0"] for line in figure.layout["shapes"]] == [0.5, 2.5, 4.5]
    assert figure.title == "Loss and learning rate"
    assert figure.summary == (
        "The training loss, as the Trainer logged it: first 3, last 2. On the evaluation data: 3.5 before training, "
        "2.5 after step 4. Dotted lines are evaluations. 1 of the logged losses and gradient norms are no finite "
        "number, and are not drawn."
    )


def test_the_least_and_the_most_loss_of_a_bucket_are_shown():
    held = steps(steps=[8, 8], loss=[3.0, 2.0], loss_min=[2.5, 1.5], loss_max=[4.0, 2.0])
    low, high, line = training_curve(held, []).traces
    assert (low["y"], high["y"], line["y"]) == ([2.5, 1.5], [4.0, 2.0], [3.0, 2.0])
    assert high["fill"] == "tonexty"
    assert [entry.name for entry in training_curve(held, []).legend] == ["training loss"]


def test_hundreds_of_evaluations_are_a_line_alone():
    figure = training_curve(steps(), [Evaluation(step, {"loss": 1.0}) for step in range(100)])
    assert figure.layout["shapes"] == []
    assert drawn(figure)["evaluation loss"]["mode"] == "lines"


def test_throughput_and_its_mean():
    held = steps(non_padding_tokens=[100, 200, None, 400], step_seconds_mean=[0.5, 1.0, 1.0, 2.0])
    tokens = TokenAccount(None, None, None, None, 155.5, None)
    found = drawn(throughput(held, tokens, 1))
    assert found["tokens/s"]["y"] == [200.0, 200.0, None, 200.0]
    assert (found["over the run"]["x"], found["over the run"]["y"]) == ([0.5, 4.5], [155.5, 155.5])
    assert list(drawn(throughput(held, tokens, 8))) == ["tokens/s of rank 0"]


def test_step_times_with_their_percentiles():
    times = StepTimes(13, 3, "the first 3", 1.5, 2.5, 2.9, 3.0, 9.0)
    figure = step_times(times, Histogram("linear", [1.0, 2.0, 3.0], [6, 4]))
    found = drawn(figure)
    assert (found["steps"]["x"], found["steps"]["y"]) == ([1.0, 2.0, 3.0], [6, 4, 4])
    assert found["steps"]["customdata"][0] == "6 of 1.00 s to 2.00 s"
    assert found["p95"]["x"] == [2.5, 2.5]
    assert found["p50"]["textposition"] == "middle right"
    assert found["p99"]["textposition"] == "middle left"  # 95% of the way to the right
    assert "10 steps without evaluation and checkpointing, from 1.00 s to 3.00 s" in figure.summary
    assert isinstance(step_times(dataclasses.replace(times, p50_seconds=None), Histogram()), Missing)


def test_tokens_three_ways():
    held = steps(steps=[2, 1], processed_tokens=[200, 100], non_padding_tokens=[150, 90], loss_bearing_tokens=[50, 30])
    figure = step_tokens(held, TokenAccount(300, 240, 80, 0.2, None, None))
    assert [trace["y"] for trace in figure.traces] == [[100.0, 100.0], [75.0, 90.0], [25.0, 30.0]]
    assert "300 processed, padding included, 240 without padding, 80 bearing loss. Padding: 20%." in figure.summary


def test_lengths_in_ascending_order():
    held = SequenceAccount(
        mean_tokens=20.0, shortest_tokens=3, longest_tokens=1000, length_buckets={"1024": 1, "64": 7, "128": 2}
    )
    figure = sequence_lengths(held)
    (trace,) = figure.traces
    assert figure.layout["xaxis"]["ticktext"] == ["64", "128", "256", "512", "1,024"]
    assert (trace["x"], trace["y"]) == ([5.875, 6.875, 9.875], [7, 2, 1])  # from 2 ** 5.75 to 64, and so on
    assert trace["customdata"] == ["≤ 64", "≤ 128", "≤ 1,024"]
    assert isinstance(sequence_lengths(SequenceAccount()), Missing)


def test_shares_of_time_money_and_energy(full_run):
    figure = phase_shares(full_run.account)
    forward = drawn(figure)["forward"]
    assert forward["y"] == ["energy", "money", "time"]
    assert forward["x"] == [
        full_run.account.energy.phase_joules["forward"],
        full_run.account.money.phase_usd["forward"],
        full_run.account.time.phase_seconds["forward"],
    ]
    assert figure.layout["barnorm"] == "percent"


def test_power_of_every_meter(full_run):
    found = drawn(power(full_run.account, full_run.series))
    assert list(found) == ["GPU 0", "CPU package 0"]
    assert found["CPU package 0"]["y"][5] == 120.0
    assert isinstance(power(full_run.account, series(steps())), Missing)


def test_columns_of_a_span():
    held = span_data(steps(steps=[2, 1], step_seconds_mean=[0.5, 0.75], loss=[None, 1.5]))
    assert (held["start"], held["end"]) == ([0.5, 2.5], [2.5, 3.5])
    assert held["training"] == [1.0, 0.75]
    assert held["loss"] == [None, 1.5]
    assert [(phase["label"], phase["seconds"]) for phase in held["phases"]] == [
        ("forward", [1.5, 0.75]),
        ("unattributed", [0.5, 0.25]),
    ]


def test_runs_under_each_other():
    figure = compare_phases([time(imports=2.0, forward=5.0), time(forward=1.0, dreaming=7.0)], ["A", "B"])
    found = drawn(figure)
    assert list(found) == ["start of Python, imports", "forward", "unattributed", "dreaming"]
    assert (found["forward"]["y"], found["forward"]["x"]) == (["B", "A"], [1.0, 5.0])
    assert found["dreaming"]["x"] == [7.0, 0.0]
    assert figure.layout["xaxis"]["range"] == [0, 9.0]


@pytest.mark.parametrize(
    ("edges", "told"),
    [
        ([9.1, 20.0, 41.5], ["10", "20"]),
        ([0.004, 0.03], ["0.005", "0.01", "0.02"]),
        ([0.5, 20.0, 300.0], ["1", "10", "100"]),
    ],
)
def test_ticks_of_step_times_are_written_out(edges, told):
    times = StepTimes(10, 0, "none", 2.0, 2.0, 2.0, 2.0, None)
    counts = [5] * (len(edges) - 1)
    layout = step_times(times, Histogram("log", edges, counts)).layout["xaxis"]
    assert layout["ticktext"] == told
    assert layout["tickvals"] == [float(text) for text in told]
    assert "tickvals" not in step_times(times, Histogram("linear", edges, counts)).layout["xaxis"]


def test_losses_and_step_times_over_each_other():
    first = steps(loss=[3.0, None, 2.0, None])
    second = steps(steps=[1, 1], step_seconds_mean=[0.5, 0.25])
    losses = compare_losses([first, second, None], ["A a", "B b", "C c"])
    assert {name: (trace["x"], trace["y"]) for name, trace in drawn(losses).items()} == {
        "A a": ([1.0, 3.0], [3.0, 2.0])
    }
    assert losses.summary == "As the Trainer logged it. 2 of the runs have no records of it."
    times = compare_step_times([first, second], ["A a", "B b"])
    assert drawn(times)["B b"]["y"] == [0.5, 0.25]
    assert (times.layout["xaxis"]["range"], times.selectable) == ([0.5, 4.5], False)
    assert isinstance(compare_losses([None], ["A"]), Missing)


def test_a_name_of_the_legend_has_all_its_traces():
    traces = [
        {"type": "scatter", "name": "a", "line": {"color": "#111111", "dash": "dot"}},
        {"type": "bar", "name": "b", "marker": {"color": "#222222"}},
        {"type": "scatter", "name": "", "line": {"color": "#333333"}},
        {"type": "scatter", "name": "a", "line": {"color": "#444444"}},
    ]
    assert legend_of(traces) == [
        LegendEntry("a", "#111111", (0, 3), line=True, dashed=True),
        LegendEntry("b", "#222222", (1,)),
    ]


@pytest.mark.parametrize(("value", "told"), [(1234567.8, 1234570.0), (0.000123456789, 0.000123457), (None, None)])
def test_six_digits(value, told):
    assert rounded([value]) == [told]
