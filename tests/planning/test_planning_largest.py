"""The most that fits: how it is searched, and what a simulation of it says."""

import pytest
from planned_recipes import MIB, device, tiny_recipe

from hf_efficient.planning.advice import Trials, most_that_fits, with_largest
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.plan import plan
from hf_efficient.recipe.load import change_recipe
from hf_efficient.records.plan import PlannedOutcome


def outcome(needed, limit=1000):
    return PlannedOutcome(needed, needed <= limit, None, None)


def search(needed, known=(), most=10_000):
    """The count found, and the counts looked at."""
    looked = []

    def probe(count):
        looked.append(count)
        return outcome(needed(count))

    found = most_that_fits(probe, 1000, {count: outcome(needed(count)) for count in known}, most)
    return found, looked


def test_on_a_line_two_points_tell_and_one_more_confirms():
    """100 + 7 n: 128 are 996, 129 are 1003."""
    assert search(lambda count: 100 + 7 * count, known=[4]) == (128, [8, 128, 129])
    # At 200: 1500. The half of it fits, and the line through both tells the rest.
    assert search(lambda count: 100 + 7 * count, known=[200]) == (128, [100, 128, 129])
    assert search(lambda count: 1100 + count, known=[4])[0] == 0
    assert search(lambda count: 100 + count, known=[4], most=64) == (64, [8, 64])


@pytest.mark.parametrize(
    ("needed", "expected"),
    [
        (lambda count: count * count, 31),
        (lambda count: 900 + count // 16 * 40, 47),  # in steps, as an allocator's segments
        (lambda count: 500 if count < 77 else 5000, 76),
        (lambda count: 10 * count + (300 if count > 40 else 0), 70),
    ],
)
@pytest.mark.parametrize("start", [1, 50, 900])
def test_where_it_is_no_line(needed, expected, start):
    found, looked = search(needed, known=[start])
    assert found == expected
    assert len(looked) < 20


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A plan of the tiny recipe for a device of so many MiB, with the most that fits."""
    monkeypatch.chdir(tmp_path)

    def build(mebibytes, *overrides):
        gpu = device(mebibytes)
        for module in ("plan", "advice"):
            monkeypatch.setattr(f"hf_efficient.planning.{module}.accelerator", lambda name: gpu)
        recipe = tiny_recipe(tmp_path, *overrides)
        return recipe, gpu, with_largest(recipe, plan(recipe, ["Toy"])).largest

    return build


@pytest.mark.slow
def test_what_is_found_fits_and_one_more_does_not(planned):
    recipe, gpu, largest = planned(560)
    assert not largest.rows_bounded
    trials = Trials(model_config(recipe.model), gpu)
    rows = largest.micro_batch_rows
    fits = [
        trials.run(change_recipe(recipe, {"train.per_device_train_batch_size": count})).outcome.fits
        for count in (rows, rows + 1)
    ]
    assert fits == [True, False]
    assert rows > 4
    fits = [trials.run(recipe, length).outcome.fits for length in (largest.row_tokens, largest.row_tokens + 64)]
    assert fits == [True, False]
    assert largest.row_tokens % 64 == 0


@pytest.mark.slow
def test_no_row_is_longer_than_the_models_positions(planned):
    _, _, largest = planned(4096, "train.per_device_train_batch_size=1")
    assert (largest.row_tokens, largest.tokens_bounded) == (1024, True)


@pytest.mark.slow
def test_not_even_one_row(planned):
    _, gpu, largest = planned(430)
    assert gpu.memory_bytes == 430 * MIB
    assert (largest.micro_batch_rows, largest.row_tokens) == (0, 0)
