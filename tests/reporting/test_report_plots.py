"""What is drawn, by hand."""

import dataclasses

from hand_made import NO_STEPS, series, steps

from hf_efficient.records.account import Band, Histogram, StepTimes, SystemSeries
from hf_efficient.records.amounts import Evaluation, MemoryAccount, MemoryCategory, SequenceAccount, TokenAccount
from hf_efficient.reporting.plots import steps as draw
from hf_efficient.reporting.plots.figure import Figure, Missing, evaluation_places, step_axis
from hf_efficient.reporting.plots.over_time import cores_figure, gpu_figure, memory_over_time, phases_over_time
from hf_efficient.reporting.plots.steps import step_phases

GIB = 2**30
TIMES = StepTimes(4, 1, "the first", 1.0, 1.0, 1.0, 1.0, 1.0)


def drawn(figure):
    assert isinstance(figure, Figure)
    return {trace.get("name", ""): trace for trace in figure.traces}


def test_seconds_per_step_are_means_of_their_bucket():
    figure = step_phases(steps(steps=[2, 1], wall_seconds=[2.0, 1.0]), TIMES)
    forward = drawn(figure)["forward"]
    assert (forward["y"], forward["width"], forward["type"]) == ([0.75, 0.75], [2, 1], "bar")
    assert "A point is the mean of up to 2 steps." in figure.summary
    assert "range" not in figure.layout["yaxis"]


def test_memory_lines_break_between_processes_and_kinds_stand_while_it_trained(full_run):
    system = SystemSeries(
        process=[0, 0, 1], started_at_seconds=[1.0, 2.0, 4.0], ended_at_seconds=[1.0, 3.0, 5.0],
        rss_bytes=Band([0.0] * 3, [0.0] * 3, [GIB, 2 * GIB, 3.0 * GIB]), device_allocated_bytes=band(None, None, None),
    )  # fmt: skip
    kinds = [MemoryCategory("weights", GIB, "exact"), MemoryCategory("adapter", 0, "exact")]
    wall = dataclasses.replace(full_run.account.time, wall_seconds=6.0)
    memory = MemoryAccount(3 * GIB, None, None, None, None, kinds)
    account = dataclasses.replace(full_run.account, memory=memory, time=wall)
    held = steps(steps=[1, 1], started_at_seconds=[2.0, 5.0])
    figure = memory_over_time(account, series(held, system=system, process_starts_seconds=[0.0, 4.0]))
    host, weights = (drawn(figure)[name] for name in ("host memory of the process", "weights"))
    assert set(drawn(figure)) == {"host memory of the process", "weights"}
    assert (host["x"], host["y"]) == ([1.0, 2.5, 2.5, 4.5], [1.0, 2.0, None, 3.0])
    assert weights["x"] == [2.0, 2.0, 4.0, 4.0, 5.0, 5.0, 6.0, 6.0]
    assert weights["y"] == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    assert "Peaks: 3.00 GiB at most in the host's memory." in figure.summary
    assert isinstance(memory_over_time(account, series(held)), Missing)


def test_losses_rates_and_evaluations():
    held = steps(loss=[None, 3.0, None, 2.0], learning_rate=[None, 1e-4, None, 5e-5], not_finite=[0, 1, 0, 0])
    held = dataclasses.replace(held, loss_min=held.loss, loss_max=held.loss)
    evaluations = [Evaluation(0, {"loss": 3.5}), Evaluation(2, {"loss": None}), Evaluation(4, {"loss": 2.5}, 1.0)]
    figure = draw.training_curve(held, evaluations)
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


def test_rewards_of_preferences():
    held = {"margin": [0.0, None, 1.0, 2.0], "chosen_reward": [0.0, None, 0.5, 0.6], "accuracy": [0.5, None, 0.8, 0.9]}
    figure = draw.preference_curve(steps(preferences=held), "margin 0 to 2")
    found = drawn(figure)
    assert (found["margin"]["x"], found["margin"]["y"]) == ([1.0, 3.0, 4.0], [0.0, 1.0, 2.0])
    assert {name: trace["yaxis"] for name, trace in found.items()} == {"margin": "y", "better": "y", "accuracy": "y2"}
    assert figure.summary.startswith("Margin 0 to 2. Rewards are as TRL's trainer logged them;")
    assert draw.preference_curve(steps(), "") is None


def test_throughput_and_its_mean():
    held = steps(non_padding_tokens=[100, 200, None, 400], step_seconds_mean=[0.5, 1.0, 1.0, 2.0])
    tokens = TokenAccount(None, None, None, None, 155.5, None)
    found = drawn(draw.throughput(held, tokens, 1))
    assert found["tokens/s"]["y"] == [200.0, 200.0, None, 200.0]
    assert (found["over the run"]["x"], found["over the run"]["y"]) == ([0.5, 4.5], [155.5, 155.5])
    assert list(drawn(draw.throughput(held, tokens, 8))) == ["tokens/s of rank 0"]


def test_step_times_with_their_percentiles():
    times = StepTimes(13, 3, "the first 3", 1.5, 2.5, 2.9, 3.0, 9.0)
    figure = draw.step_times(times, Histogram("linear", [1.0, 2.0, 3.0], [6, 4]))
    found = drawn(figure)
    assert (found["steps"]["x"], found["steps"]["y"]) == ([1.0, 2.0, 3.0], [6, 4, 4])
    assert found["steps"]["customdata"][0] == "6 of 1.00 s to 2.00 s"
    assert found["p95 2.50 s"]["x"] == [2.5, 2.5]
    assert "10 steps without evaluation and checkpointing, from 1.00 s to 3.00 s" in figure.summary
    assert isinstance(draw.step_times(dataclasses.replace(times, p50_seconds=None), Histogram()), Missing)


def test_lengths_in_ascending_order():
    buckets = {"1024": 1, "64": 7, "128": 2}
    held = SequenceAccount(mean_tokens=20.0, shortest_tokens=3, longest_tokens=1000, length_buckets=buckets)
    figure = draw.sequence_lengths(held)
    (trace,) = figure.traces
    assert figure.layout["xaxis"]["ticktext"] == ["64", "128", "256", "512", "1,024"]
    assert (trace["x"], trace["y"]) == ([5.875, 6.875, 9.875], [7, 2, 1])  # from 2 ** 5.75 to 64, and so on
    assert trace["customdata"] == ["≤ 64", "≤ 128", "≤ 1,024"]
    assert isinstance(draw.sequence_lengths(SequenceAccount()), Missing)


def test_losses_and_step_times_over_each_other():
    first = steps(loss=[3.0, None, 2.0, None])
    second = steps(steps=[1, 1], step_seconds_mean=[0.5, 0.25])
    losses = draw.compared("loss", [first, second, None], ["A a", "B b", "C c"])
    ((name, trace),) = drawn(losses).items()
    assert (name, trace["x"], trace["y"]) == ("A a", [1.0, 3.0], [3.0, 2.0])
    assert losses.summary == "As the Trainer logged it. 2 of the runs have no records of it."
    times = draw.compared("step-times", [first, second], ["A a", "B b"])
    assert drawn(times)["B b"]["y"] == [0.5, 0.25]
    assert (times.layout["xaxis"]["range"], times.selectable) == ([0.5, 4.5], False)
    assert isinstance(draw.compared("loss", [None], ["A"]), Missing)


def test_steps_done_again_follow_each_other():
    held = steps(segment=[0, 0, 1, 1], first_step=[1, 2, 2, 3], last_step=[1, 2, 2, 3])
    where = step_axis(held)
    assert (where.starts, where.resumed_at) == ([0.5, 1.5, 2.5, 3.5], [2.5])
    assert where.title == "optimizer steps in the order recorded"
    assert [line["x0"] for line in where.resumptions()] == [2.5]
    # Before the first step, after step 2 of the first start, after step 2 of the second, after step 3.
    assert evaluation_places([Evaluation(step, {}) for step in (0, 2, 3)], held, where) == [0.5, 2.5, 4.5]
    assert evaluation_places([Evaluation(step, {}) for step in (3, 1)], held, where) == [4.5, 1.5]


def band(*values):
    return Band(list(values), list(values), list(values))


def two_readings(**parts):
    """At 1 s and at 3 s, of one process."""
    plain = {"process": [0, 0], "started_at_seconds": [1.0, 3.0], "ended_at_seconds": [1.0, 3.0]}
    return SystemSeries(**{**plain, **parts})


def seen(**parts):
    return series(steps(), system=two_readings(**parts))


def test_phases_are_shares_as_wide_as_their_time(full_run):
    phases = {"forward": [1.0, 1.0], "evaluation": [0.0, 3.0]}
    held = steps(steps=[1, 1], started_at_seconds=[10.0, 12.0], wall_seconds=[2.0, 4.0], phase_seconds=phases)
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


def gpu(**parts):
    gpus = {"3": {"utilization_percent": band(90.0, 70.0), "sm_clock_mhz": band(1980.0, 1500.0)}}
    return seen(gpus=gpus, watts={"GPU 3": band(300.0, 350.0)}, **parts)


def test_a_gpu_in_panels_with_points_where_it_was_held_back(full_run):
    run = gpu(throttled={"3": {"thermal": [0.0, 0.5], "power_cap": [0.0, 0.0]}})
    found = drawn(figure := gpu_figure(full_run.account, run, "3", "a-gpu"))
    panels = {"utilization": "y", "power": "y2", "clock of its processors": "y3", "held back": "y3"}
    assert {name: trace["yaxis"] for name, trace in found.items()} == panels
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
