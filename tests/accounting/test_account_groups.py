"""Phases put together by the part of a run."""

from __future__ import annotations

from hf_efficient.accounting.headline import GROUPS, PhaseGroup, grouped
from hf_efficient.records.steps import PHASES


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


def test_a_phase_of_a_newer_version_is_not_lost():
    assert grouped({"forward": 1.0, "dreaming": 3.0})[-1] == PhaseGroup("other", 3.0, {"dreaming": 3.0})
