"""The headline figures, and phases by part of a run."""

import pytest

from hf_efficient.accounting.live import GROUPS, PhaseGroup, grouped, headline
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
