"""The headline figures, how those of several runs differ, and phases by part of a run."""

import pytest

from hf_efficient.accounting.headline import GROUPS, PhaseGroup, differences, grouped, headline
from hf_efficient.records.steps import PHASES
from tests.reporting.sample_run import full, write_records


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from hf_efficient.reporting.run_data import read_run

    return full(read_run(write_records(tmp_path_factory.mktemp("run"), steps=60)))


def test_figures_of_a_run(run):
    found = headline(run.account, run.series)
    assert found["wall_seconds"] == run.account.time.wall_seconds
    assert found["steps"] == 60
    assert (found["device_peak_allocated_bytes"], found["peak_rss_bytes"]) == (41 * 2**30, 7 * 2**30)
    assert (found["loss_before"], found["loss_after"]) == (2.613, 1.592)  # 1.2 + 1.3 exp(-60 / 50)
    assert found["training_loss"] == [loss for loss in run.series.steps.loss if loss is not None][-1]
    assert found["unattributed_share"] == run.account.time.unattributed_seconds / run.account.time.wall_seconds


def test_differences_by_hand():
    first = {"steps": 10, "wall_seconds": 100.0, "mfu": 0.4, "cost_usd": None, "hfu": None, "loss_before": 0.0}
    second = {"steps": 10, "wall_seconds": 80.0, "mfu": 0.3, "cost_usd": 2.0, "hfu": None, "loss_before": 1.0}
    third = {"steps": 5, "wall_seconds": 50.0, "mfu": 0.4001, "cost_usd": None, "hfu": None, "loss_before": None}
    found = {each.name: each for each in differences([first, second, third])}
    assert list(found) == ["steps", "wall_seconds", "mfu", "cost_usd", "loss_before"]
    assert found["wall_seconds"].relative == [0.0, pytest.approx(-0.2), -0.5]
    assert found["wall_seconds"].judgement == ["", "better", ""]  # the third did fewer steps: less is not better
    assert found["mfu"].judgement == ["", "worse", ""]  # alike to 0.05%
    assert found["cost_usd"].relative == found["loss_before"].relative == [None, None, None]
    assert found["steps"].judgement == ["", "", ""]
    assert differences([]) == []


def test_every_phase_has_one_part():
    assert sorted(phase for phases in GROUPS.values() for phase in phases) == sorted(PHASES)


def test_sums_by_part_in_the_order_of_a_run():
    found = grouped({"unattributed": 0.25, "backward": 2.0, "imports": 1.0, "evaluation": 4.0, "forward": 0.5})
    assert found == [
        PhaseGroup("before training", 1.0, {"imports": 1.0}),
        PhaseGroup("training", 2.5, {"forward": 0.5, "backward": 2.0}),
        PhaseGroup("evaluations and checkpoints", 4.0, {"evaluation": 4.0}),
        PhaseGroup("unattributed", 0.25, {"unattributed": 0.25}),
    ]
