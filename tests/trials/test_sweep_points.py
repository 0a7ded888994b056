"""The points of a sweep, the rounds in which they are measured, and the knee."""

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records.tuning import SweptPoint, unmeasured_beyond
from hf_efficient.trials.goal import Goal
from hf_efficient.trials.process import RunFailed
from hf_efficient.trials.sweep import Rounds, mark_knees, points_of, values_of
from tests.conftest import small_recipe
from tests.trials.machine import Heard, SweptMachine

ROWS, LENGTH = "train.per_device_train_batch_size", "train.max_length"
TRAIN = {"max_length": 512, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 10}


def recipe(train=TRAIN, **sections):
    return small_recipe(data={"train": [{"path": "x"}]}, train=dict(train), **sections)


@pytest.mark.parametrize(
    ("over", "values"),
    [
        ("per_device_train_batch_size=4,1,2,2", {ROWS: (1, 2, 4)}),
        ("per_device_train_batch_size", {ROWS: (1, 2, 4, 8, 16)}),
        ("max_length", {LENGTH: (128, 256, 512, 1024, 2048)}),
        ("train.max_length=64, 128 ,per_device_train_batch_size=1", {LENGTH: (64, 128), ROWS: (1,)}),
    ],
)
def test_values(over, values):
    assert values_of(over, Settings(recipe(), train_fields("sft"))) == values


@pytest.mark.parametrize(
    ("over", "told"),
    [
        ("", "--over: names no key. Write per_device_train_batch_size=1,2,4"),
        ("batch_size=1", "--over: batch_size is no key of `train:`. Write per_device_train_batch_size=1,2,4."),
        ("max_lenght=1", "--over: max_lenght is no key of `train:`. Write max_length=1,2,4."),
        ("optim=1", "--over: train.optim takes no whole number. Name another key"),
        ("learning_rate", "--over: train.learning_rate takes no whole number"),
        ("max_steps=5", "--over: train.max_steps is set by each trial itself"),
        ("max_length=0.5", "--over: 0.5 is no value of max_length. Write whole numbers above zero: max_length=1,2,4."),
        ("max_length=", "--over: nothing is no value of max_length"),
        ("max_length=8,-1", "--over: -1 is no value of max_length"),
        ("pad_to_multiple_of", "--over: the recipe has no pad_to_multiple_of to begin at."),
        ("max_length=1,max_length=2", "--over: max_length is named twice"),
    ],
)
def test_keys_and_values_that_are_none(over, told):
    with pytest.raises(SetupError, match=told):
        points_of(recipe(), over)


def test_the_global_batch_grows_unless_the_recipe_names_it():
    grows = points_of(recipe(), "per_device_train_batch_size=1,4")
    assert [one.rows for one in grows] == [2, 8]
    train = {name: value for name, value in TRAIN.items() if name != "gradient_accumulation_steps"}
    named = recipe(train, distributed={"global_batch_size": 8})
    kept = points_of(named, "per_device_train_batch_size=1,3,4")
    assert [(one.rows, one.verdict) for one in kept] == [(8, "no_time"), (0, "failed"), (8, "no_time")]
    assert "8" in kept[1].why
    with pytest.raises(SetupError, match="--over: per_device_train_batch_size 3: "):
        points_of(named, "per_device_train_batch_size=3")


def swept(machine, over, recipe_=None, **goal):
    points = points_of(recipe_ or recipe(), over)
    rounds = Rounds(points, Goal(**{"minutes": 60.0, **goal}), machine, Heard())
    rounds.go()
    return points, rounds


def test_points_run_in_turns_and_are_planned_once():
    machine = SweptMachine()
    points, rounds = swept(machine, "per_device_train_batch_size=1,2,4")
    assert [values[ROWS] for values, _ in machine.asked] == [1, 2, 4, 4, 2, 1, 1, 2, 4]
    assert [wanted.plan for _, wanted in machine.asked] == [True] * 3 + [False] * 6
    assert rounds.spent == pytest.approx(sum(machine.walls))
    assert [one.verdict for one in points] == ["measured"] * 3
    # of 1 s and 0.5 s a row: 100 tokens in 1.5 s, 200 in 2 s, 400 in 3 s
    assert [one.tokens_per_second for one in points] == pytest.approx([100 / 1.5, 100, 400 / 3])
    assert [one.p95_seconds for one in points] == pytest.approx([1.5, 2, 3])
    assert points[0].steps == 3 * 5
    assert points[0].peak_bytes == 1000  # not of the first trial, which planned


def test_what_does_not_fit_is_not_run_and_neither_is_what_is_larger():
    machine = SweptMachine(faults={(2, 512): RunFailed("it is planned for 30 GiB", "no_room", 3.0)})
    points, _ = swept(machine, "per_device_train_batch_size=1,2,4,max_length=256,512")
    found = {tuple(one.values.values()): (one.verdict, one.why) for one in points}
    assert found[2, 512] == ("does_not_fit", "it is planned for 30 GiB")
    assert found[4, 512] == ("does_not_fit", "per_device_train_batch_size 2, max_length 512 does not fit")
    assert {one for one, (verdict, _) in found.items() if verdict == "measured"} == {
        (1, 256), (1, 512), (2, 256), (4, 256),
    }  # fmt: skip
    assert sum(values[ROWS] == 2 and values[LENGTH] == 512 for values, _ in machine.asked) == 1


def test_when_the_time_ends_the_rest_is_named():
    points, rounds = swept(SweptMachine(), "per_device_train_batch_size=1,2,4,8", minutes=0.8)
    assert [one.verdict for one in points] == ["measured"] * 3 + ["no_time"]  # of 11.5, 12 and 13 s
    assert points[3].why == "the time ended before it: more --minutes measure it"
    assert rounds.spent == pytest.approx(36.5)


@pytest.mark.parametrize(
    ("machine", "minutes", "told"),
    [
        (SweptMachine(), 0.1, "--minutes: 0.1 are too few: one trial took 11.5 s, and there are 3 points. Write 1 or"),
        (
            SweptMachine(faults={(1, 512): RunFailed("it is planned for 30 GiB", "no_room")}),
            60.0,
            "sweep: no point fits: with per_device_train_batch_size 1, it is planned for 30 GiB. Write smaller values",
        ),
        (
            SweptMachine(faults={(1, 512): RunFailed("no such file", "input")}),
            60.0,
            "sweep: the recipe does not train: with per_device_train_batch_size 1, no such file",
        ),
        (
            SweptMachine(faults={(1, 512): RunFailed("2 s passed before a step ended", "no_time")}),
            60.0,
            "--minutes: 60 are too few: with per_device_train_batch_size 1, 2 s passed before a step ended",
        ),
    ],
    ids=["minutes", "fits", "trains", "time"],
)
def test_sweeps_without_an_answer(machine, minutes, told):
    with pytest.raises(SetupError, match=told):
        swept(machine, "per_device_train_batch_size=1,2,4", minutes=minutes)


def test_a_point_that_fails_later_is_named_and_the_rest_goes_on():
    machine = SweptMachine(faults={(2, 512): RunFailed("out of memory.")})
    points, _ = swept(machine, "per_device_train_batch_size=1,2,4")
    assert [(one.verdict, one.why) for one in points] == [
        ("measured", ""),
        ("failed", "out of memory"),
        ("measured", ""),
    ]


def point(rows, rate, length=512):
    values = {ROWS: rows, LENGTH: length}
    return SweptPoint(f"{rows} x {length}", values, rows, "measured", steps=5, tokens_per_second=rate)


def test_the_knee_is_the_last_value_whose_doubling_pays():
    # 1 to 2: 1.8 times; 2 to 8 are two doublings of sqrt(1.44) = 1.2 each; 8 to 16: 1.05 times
    curve = [point(1, 100), point(2, 180), point(8, 259.2), point(16, 272.16)]
    assert list(mark_knees(curve)) == []
    assert [one.gain_per_doubling for one in curve[1:]] == pytest.approx([1.8, 1.2, 1.05])
    assert [one.is_knee for one in curve] == [False, False, True, False]


def test_each_length_has_a_knee_of_its_own_and_a_curve_that_rises_to_its_end_has_none():
    rising = [point(1, 100, 128), point(2, 150, 128)]
    flat = [point(1, 100), point(2, 101), point(4, 150)]  # what rises after the knee counts no more
    told = "no knee at max_length 128: tokens/s still rise at the largest measured value, 2 x 128"
    assert list(mark_knees([*rising, *flat])) == [told]
    assert [one.is_knee for one in flat] == [True, False, False]


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ((100, 190, 0, 0), "tokens/s still rise at the largest measured value, 2 x 512, without 4 x 512 and 8 x 512"),
        ((100, 0, 0, 0), "1 x 512 alone was measured, without 2 x 512 and 4 x 512 and 8 x 512"),
    ],
)
def test_no_knee_is_claimed_beyond_what_was_measured(rates, told):
    points = [point(2**power, rate) if rate else unmeasured(2**power) for power, rate in enumerate(rates)]
    assert list(mark_knees(points)) == [f"no knee at max_length 512: {told}"]
    assert not any(one.is_knee for one in points)


def unmeasured(rows):
    return SweptPoint(f"{rows} x 512", {ROWS: rows, LENGTH: 512}, rows, "no_time")


@pytest.mark.parametrize(
    ("rates", "beyond"), [((100, 190, 0), ["4 x 512"]), ((100, 0, 300), []), ((100, 190, 300), [])]
)
def test_what_lies_beyond_an_answer_is_named_where_nothing_of_it_was_measured(rates, beyond):
    points = [point(2**power, rate) if rate else unmeasured(2**power) for power, rate in enumerate(rates)]
    assert unmeasured_beyond(points, [one for one in points if one.tokens_per_second in (100, 190)][-1]) == beyond
