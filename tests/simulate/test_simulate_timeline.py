"""A simulation thinned out, by hand-worked logs."""

from __future__ import annotations

from test_simulate_peak import EVENTS, log_of

from hf_efficient.simulate.tensor_log import Moment, timeline


def by_index(life):
    return "odd" if life.bytes in (50, 20) else "even"


def test_every_moment_where_there_are_few():
    found = timeline(log_of(*EVENTS), by_index)
    assert [moment.event for moment in found] == list(range(1, 11))
    totals = [sum(moment.categories.values()) for moment in found]
    assert totals == [100, 150, 100, 170, 190, 120, 20, 180, 20, 30]
    assert found[4].categories == {"even": 170, "odd": 20}


def test_of_each_stretch_the_highest():
    """Stretches of four events: 100 150 100 170 | 190 120 20 180 | 20 30."""
    found = timeline(log_of(*EVENTS), by_index, most=3)
    assert [(moment.event, sum(moment.categories.values())) for moment in found] == [(4, 170), (5, 190), (10, 30)]


def test_from_a_later_event_on_what_is_there_counts():
    found = timeline(log_of(*EVENTS), by_index, start=6, most=2)
    assert [(moment.event, moment.categories) for moment in found] == [
        (8, {"even": 160, "odd": 20}),
        (10, {"even": 10, "odd": 20}),
    ]


def test_the_phase_is_that_of_the_last_allocation():
    phases = {2: "backward", 3: "backward", 4: "optimizer"}
    found = timeline(log_of(*EVENTS, phases=phases), by_index)
    assert [moment.phase for moment in found][2:9] == ["forward", *["backward"] * 4, "optimizer", "optimizer"]


def test_nothing_happens():
    assert timeline(log_of(), by_index) == []
    assert timeline(log_of((0, 1)), by_index) == [Moment(1, "forward", {"even": 1})]
