"""Throughput against the time of a step: which points run, the knee, the answer under a limit."""

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.records.tuning import SweepPoint, TrialRun
from hf_efficient.tune import sweep as module
from hf_efficient.tune.sweep import largest_under, sweep, with_knees
from hf_efficient.tune.trial import DoesNotFit
from tests.tune.machine import Heard


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(
        "model: {id: m}\ndata: {train: x.jsonl}\n"
        f"train: {{per_device_train_batch_size: 2, max_length: 256}}\noutput_dir: {tmp_path / 'out'}\n"
    )
    return path


@pytest.fixture
def ran(monkeypatch):
    """A step takes 0.1 s and 1 ms a row; 8 rows of 256 tokens do not fit."""
    asked = []

    def run(self, changes, wanted):
        rows, length = changes["train.per_device_train_batch_size"], changes["train.max_length"]
        asked.append((rows, length))
        if rows >= 8 and length == 256:
            raise DoesNotFit("it is planned for 30 GiB")
        seconds, tokens = 0.1 + 0.001 * rows, rows * length
        steps = {"step_seconds": [seconds] * 10, "step_tokens": [tokens] * 10, "step_positions": [tokens] * 10}
        return TrialRun(**steps, row_tokens=length, device="cpu", fast_bfloat16=True, weights="float32", peak_bytes=1)

    monkeypatch.setattr(module.Trials, "run", run)
    return asked


def test_every_point_runs_once_until_one_does_not_fit(recipe, ran):
    found = sweep(str(recipe), [], list(module.AXES), Heard(), p95_seconds=0.105)
    assert {length for _, length in ran} == {64, 128, 256}
    assert sorted(rows for rows, length in ran if length == 64) == [1, 2, 4, 8, 16]
    assert (16, 256) not in ran
    left_out = [one for one in found.points if one.tokens_per_second is None]
    assert [(one.rows, one.length, one.why) for one in left_out] == [
        (8, 256, "it is planned for 30 GiB"),
        (16, 256, "it is planned for 30 GiB"),
    ]
    assert (found.largest.rows, found.largest.length) == (4, 256)
    assert found.largest.tokens_per_second == pytest.approx(4 * 256 / 0.104)
    assert found.largest.p95_seconds == pytest.approx(0.104)


def test_one_axis_keeps_the_recipes_own_value_of_the_other(recipe, ran):
    sweep(str(recipe), [], ["per_device_train_batch_size"], Heard(), rows=[1, 3])
    assert ran == [(1, 256), (3, 256)]


def test_the_knee_is_the_smallest_micro_batch_with_nearly_the_best_throughput():
    rates = {1: 100.0, 2: 180.0, 4: 195.0, 8: 200.0}
    points = [SweepPoint(rows, 64, tokens_per_second=rate, p95_seconds=rows) for rows, rate in rates.items()]
    points += [SweepPoint(16, 64, why="it does not fit"), SweepPoint(1, 128, tokens_per_second=50.0, p95_seconds=9.0)]
    assert [(one.rows, one.length) for one in with_knees(points) if one.knee] == [(2, 64), (1, 128)]
    assert largest_under(points, 4.5).rows == 4
    assert largest_under(points, 0.5) is None
    assert largest_under(points, None).rows == 8


@pytest.mark.parametrize(
    ("axes", "told"),
    [
        (["learning_rate"], "--over: learning_rate cannot be swept. Write per_device_train_batch_size,max_length"),
        ([], "--over: nothing cannot be swept"),
    ],
)
def test_axes_that_are_none(recipe, ran, axes, told):
    with pytest.raises(SetupError, match=told):
        sweep(str(recipe), [], axes, Heard())
