"""The evidence of findings as it is drawn, by hand."""

from __future__ import annotations

import dataclasses

import pytest
from hand_made import series, steps
from sample_findings import diagnosed, finding

from hf_efficient.records.findings import Cost, Gain, Remedy
from hf_efficient.records.series import Band, SystemSeries
from hf_efficient.reporting.labels import PHASE_COLORS
from hf_efficient.reporting.plots.findings import cost_bar, finding_figure

GIB = 2**30


def drawn(figure):
    return {trace["name"]: trace for trace in figure.traces}


def with_steps(run, **columns):
    """The run with four steps of a second."""
    return dataclasses.replace(diagnosed(run), series=series(steps(**columns)))


def saving(seconds):
    return [Remedy("do it", {}, "", Gain(0.1, seconds, None, None, "a guess"))]


def test_phases_stand_against_everything_else_with_the_mean_now_and_predicted(full_run):
    run = with_steps(
        full_run,
        wall_seconds=[1.0, 3.0, 1.0, 3.0],
        phase_seconds={"forward": [0.75] * 4, "checkpointing": [0.0, 2.0, 0.0, 2.0]},
    )
    figure = finding_figure(3, finding(remedies=saving(2.0)), run)
    found = drawn(figure)
    assert figure.id == "finding-3-evidence"
    assert found["everything else"]["y"] == [1.0, 1.0, 1.0, 1.0]
    assert found["checkpointing"]["y"] == [None, 2.0, None, 2.0]
    assert found["checkpointing"]["marker"]["color"] == PHASE_COLORS["checkpointing"]
    # 8 s in 4 steps, 4 of them in checkpoints; 6 s after 2 s are saved.
    assert found["mean"]["y"] == [2.0, 2.0]
    assert found["mean with the first remedy (estimated)"]["y"] == [1.5, 1.5]
    assert figure.layout["yaxis"]["range"][1] >= 3.0
    assert figure.summary.startswith("Checkpointing takes 50% of a mean of 2.00 s per step.")
    assert figure.summary.endswith("With the first remedy that mean is predicted to be 1.50 s.")


def test_pauses_are_left_out_where_the_finding_is_about_something_else(full_run):
    run = with_steps(
        full_run,
        wall_seconds=[1.0, 9.0, 1.0, 1.0],
        phase_seconds={"data_wait": [0.25, 0.25, 0.25, 0.25], "evaluation": [0.0, 8.0, 0.0, 0.0]},
    )
    figure = finding_figure(1, finding("few_workers", remedies=[]), run)
    assert drawn(figure)["everything else"]["y"] == [0.75] * 4
    assert drawn(figure)["mean"]["y"] == [1.0, 1.0]
    assert figure.summary == "Data wait takes 25% of a mean of 1.00 s per step. Left out: evaluation."


def test_padding_is_what_lies_between_two_areas(full_run):
    run = with_steps(full_run, processed_tokens=[100] * 4, non_padding_tokens=[60] * 4, loss_bearing_tokens=[30] * 4)
    figure = finding_figure(1, finding("padding_waste"), run)
    assert [trace["y"] for trace in figure.traces] == [[100.0] * 4, [60.0] * 4]
    assert "Padding: 13.3%." in figure.summary
    masked = finding_figure(1, finding("masked_labels"), run)
    assert [trace["y"] for trace in masked.traces] == [[60.0] * 4, [30.0] * 4]
    assert "Padding" not in masked.summary


def test_the_time_of_steps_over_their_tokens_meets_the_left_edge_at_what_is_paid_for_nothing(full_run):
    tokens = [100 * number for number in range(1, 13)]
    forward = [0.5 + 0.001 * number for number in tokens]  # half a second, and a millisecond per token
    columns = {"steps": [1] * 12, "wall_seconds": forward, "phase_seconds": {"forward": forward}}
    run = with_steps(full_run, **columns, processed_tokens=tokens)
    found = drawn(figure := finding_figure(1, finding("small_micro_batch"), run))
    assert found["steps"]["x"] == tokens
    assert found["the line through them"]["x"] == [0.0, 1200.0]
    assert found["the line through them"]["y"] == pytest.approx([0.5, 1.7])
    assert "at 500 ms, is what a step takes whatever it holds" in figure.summary
    even = with_steps(full_run, **columns, processed_tokens=[100] * 12)
    assert finding_figure(1, finding("small_micro_batch"), even).title == "Of the loop's time"


def test_lengths_show_what_was_cut(full_run):
    figure = finding_figure(4, finding("truncated_examples"), full_run)
    assert (figure.id, figure.title) == ("finding-4-evidence", "Sequence lengths")


def test_learning_is_shown_by_what_was_logged(full_run):
    run = with_steps(full_run, loss=[3.0, 2.5, 2.0, 1.5], grad_norm=[1.0, 1.0, 1.0, 1.0])
    figure = finding_figure(2, finding("learning_rate_diverges"), run)
    assert (figure.id, figure.title) == ("finding-2-evidence", "Loss and gradient norm")
    assert drawn(figure)["training loss"]["y"] == [3.0, 2.5, 2.0, 1.5]


def test_memory_stands_below_what_there_is(full_run):
    system = SystemSeries(
        process=[0, 0],
        started_at_seconds=[1.0, 2.0],
        ended_at_seconds=[1.0, 2.0],
        device_reserved_bytes=Band([GIB, GIB], [GIB, GIB], [GIB, 2.0 * GIB]),
    )
    run = dataclasses.replace(diagnosed(full_run), series=series(steps(), system=system), memory_bytes=4 * GIB)
    found = drawn(figure := finding_figure(1, finding("near_out_of_memory"), run))
    assert found["reserved on the device"]["y"] == [1.0, 2.0]
    assert found["all that there is"]["y"] == [4.0, 4.0]
    assert "The line on top is all that there is: 4.00 GiB." in figure.summary
    unknown = finding_figure(1, finding("near_out_of_memory"), dataclasses.replace(run, memory_bytes=None))
    assert "all that there is" not in drawn(unknown)


def test_ranks_stand_below_each_other_without_their_pauses(full_run):
    held = {0: {"forward": 0.5, "communication": 0.5, "evaluation": 3.0}, 1: {"forward": 1.0, "evaluation": 3.0}}
    run = dataclasses.replace(diagnosed(full_run), rank_step_seconds=held)
    figure = finding_figure(1, finding("straggler"), run)
    found = drawn(figure)
    assert list(found) == ["forward", "communication"]
    assert (found["communication"]["y"], found["communication"]["x"]) == (["rank 0", "rank 1"], [0.5, 0.0])
    assert figure.layout["yaxis"]["autorange"] == "reversed"


def test_the_cost_is_a_part_of_the_loop_above_what_the_remedy_leaves():
    found = drawn(figure := cost_bar(finding(cost=Cost(25.0), remedies=saving(20.0)), 100.0, "a-bar"))
    assert {name: trace["x"] for name, trace in found.items()} == {
        "the rest of the loop": [75.0],
        "what it costs": [25.0],
        "with the first remedy (estimated)": [80.0],
    }
    assert figure.summary == (
        "Of the training loop's 1 min 40 s it costs 25.0 s, 25%. With the first remedy the same training is predicted "
        "to take 1 min 20 s."
    )
    assert "with the first remedy (estimated)" not in drawn(cost_bar(finding(remedies=[]), 100.0, "a-bar"))
    assert cost_bar(finding(cost=Cost()), 100.0, "a-bar") is None


@pytest.mark.parametrize("rule", ["saves_cost", "padding_waste", "memory_growth", "straggler", "of_a_newer_version"])
def test_where_its_own_plot_has_no_data_the_cost_is_shown(full_run, rule):
    run = with_steps(full_run, phase_seconds={"forward": [1.0] * 4})
    run = dataclasses.replace(run, rank_step_seconds={0: {"forward": 1.0}})
    assert finding_figure(1, finding(rule), run).title == "Of the loop's time"
    assert finding_figure(1, finding(rule), dataclasses.replace(run, series=None)).title == "Of the loop's time"
