"""Readings added up as they come, against the arithmetic of whole series, and thinned."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_efficient.accounting.system import MeterCurve, once_each
from hf_efficient.estimate.energy import joules_between


def curve(unit="joules", range_joules=None, process=0, **more):
    return MeterCurve("GPU 0", process, more.pop("id", "a"), "m", "nvml", unit, range_joules, "", **more)


READINGS = st.lists(
    st.tuples(
        st.one_of(st.just(1.0), st.floats(0, 12), st.floats(0, 600)),
        st.one_of(st.integers(0, 1500), st.integers(0, 65_000)),
    ),
    max_size=30,
)


@given(
    READINGS,
    st.sampled_from([("joules", None), ("joules", 65_000.0), ("joules", 262_000.0), ("watts", None)]),
    st.data(),
)
def test_the_sum_is_that_of_the_stretches(readings, meter, data):
    unit, range_joules = meter
    times, values, at, counted = [], [], 0.0, 0.0
    for passed, more in readings:
        at += passed
        counted = counted + more if data.draw(st.integers(0, 9)) else float(more)  # now and then it is reset
        times.append(at)
        values.append(min(float(more), 20_000.0) if unit == "watts" else counted % (range_joules or math.inf))
    found = curve(unit, range_joules)
    cut = data.draw(st.integers(0, len(times)))
    found.extend(times[:cut], values[:cut])
    found.extend(times[cut:], values[cut:])
    pairs = itertools.pairwise(zip(times, values, strict=True))
    expected = [(one[0], other[0], joules_between(one, other, unit, range_joules)) for one, other in pairs]
    known = [(start, end, joules) for start, end, joules in expected if joules is not None]
    assert found.joules == pytest.approx(sum(joules for _, _, joules in known), rel=1e-9, abs=1e-9)
    assert found.covered_seconds == pytest.approx(sum(end - start for start, end, _ in known), rel=1e-9, abs=1e-9)
    flowed, sum_until = {}, 0.0
    for _, end, joules in expected:
        sum_until += joules or 0.0
        flowed[end] = sum_until
    assert {at: found.until(at) for at in flowed} == pytest.approx(flowed, rel=1e-9, abs=1e-9)


def test_a_small_counter_is_not_bridged_over_what_it_may_start_again_in():
    """3 kJ are full after 3 s of 1000 W."""
    found = curve(range_joules=3_000.0)
    found.extend([0.0, 4.0, 5.0, 8.0, 9.0], [0.0, 100.0, 150.0, 160.0, 50.0])
    assert (found.joules, found.covered_seconds) == (50.0 + 10.0 + 2890.0, 5.0)


def test_between_readings_it_flows_evenly():
    found = curve()
    found.extend([2.0, 4.0, 5.0], [1000.0, 1100.0, 1400.0])
    assert [found.until(at) for at in (0.0, 2.0, 3.0, 4.0, 4.5, 5.0, 9.0)] == [0, 0, 50.0, 100.0, 250.0, 400.0, 400.0]
    assert curve().until(3.0) == 0.0


def test_a_reading_from_before_the_last_is_left_out():
    found = curve()
    found.extend([1.0, 3.0, 2.0, 4.0], [0.0, 30.0, 20.0, 40.0])
    assert (found.joules, found.covered_seconds) == (40.0, 3.0)


def test_a_long_curve_keeps_its_end_and_its_shape():
    """A watt until 5,000 s, two from then on; a point is kept per four seconds at most."""
    found = curve("watts")
    found.extend([float(at) for at in range(10_001)], [1.0] * 5_000 + [2.0] * 5_001)
    assert len(found.times) == 2501
    assert (found.joules, found.until(10_000.0), found.until(3_333.0)) == (15_000.5, 15_000.5, 3_333.0)
    assert found.until(9_000.0) - found.until(7_000.0) == 4_000.0
    found.extend([10_001.0], [2.0])
    assert found.until(10_001.0) == 15_002.5


def test_a_meter_that_two_read_counts_once():
    longer, shorter, other, single = curve(), curve(), curve(process=1), curve(id="b")
    longer.extend([0.0, 3.0], [0.0, 3.0])
    shorter.extend([0.0, 2.0], [0.0, 2.0])
    other.extend([0.0, 1.0], [0.0, 1.0])
    single.extend([0.0], [0.0])
    assert once_each([shorter, longer, other, single]) == [longer, other]
