from __future__ import annotations

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.isolate.experiment import VariantFailed, run_variants
from hf_efficient.isolate.variants import VARIANTS
from hf_efficient.recipe.schema import Recipe
from tests.isolate.variants_run import measured

RECIPE = Recipe(
    name="r",
    model={"id": "m"},
    data={"train": [{"path": "x"}], "eval_fraction": 0.1},
    train={"eval_strategy": "steps", "per_device_train_batch_size": 4},
    output_dir="o",
)


class Told:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.began: list[tuple[int, str]] = []
        self.failures: dict[str, str] = {}

    def begins(self, variant, number, of, round_number):
        self.began.append((round_number, variant.name))

    def ends(self, variant, seconds, failure):
        if failure:
            self.failures[variant.name] = failure


def run(variants=VARIANTS, recipe=RECIPE, failing=(), **seconds):
    """The outcomes, and what was told; ``seconds`` holds those of each round of a variant."""
    told, counts = Told(), {}

    def once(variant):
        if variant.name in failing:
            raise VariantFailed("out of device memory")
        counts[variant.name] = number = counts.get(variant.name, 0) + 1
        rounds = seconds.get(variant.name)
        changes = {"step_seconds": [rounds[number - 1]] * 6} if rounds else {}
        return measured(variant.name, **changes)

    return {one.name: one for one in run_variants(variants, recipe, once, told)}, told


def test_every_variant_that_applies_runs_in_order():
    _, told = run()
    names = [name for number, name in told.began if number == 1]
    assert names == [one.name for one in VARIANTS if one.name != "one_process"]


def test_small_differences_are_run_again_backwards():
    # recording takes 5% of the step and a log 10%; data and the backward take more and are clear
    found, told = run()
    assert [name for number, name in told.began if number == 2] == ["logged", "quiet", "as_is"]
    assert not [name for number, name in told.began if number == 3]
    assert [len(found[name].runs) for name in ("as_is", "quiet", "logged", "held_batches")] == [2, 2, 2, 1]


def test_rounds_that_contradict_each_other_call_for_a_third():
    found, told = run(as_is=[1.0, 0.9, 1.0])
    assert [name for number, name in told.began if number == 3] == ["as_is", "quiet"]
    assert len(found["as_is"].runs) == 3


def test_a_variant_that_fails_is_named_and_the_others_go_on():
    found, told = run(failing=("held_batches", "logged"))
    assert told.failures == {"held_batches": "out of device memory", "logged": "out of device memory"}
    assert found["held_batches"].runs == []
    assert found["micro_batch_doubled"].runs
    assert [name for number, name in told.began if number == 2] == ["quiet", "as_is"]


def test_a_variant_that_fails_in_a_later_round_keeps_its_first_run_and_is_not_tried_again():
    told, runs = Told(), []

    def once(variant):
        runs.append(variant.name)
        if variant.name == "logged" and runs.count("logged") == 2:
            raise VariantFailed("out of device memory")
        return measured(variant.name, **({"step_seconds": [0.9, 1.2] * 3} if variant.name == "as_is" else {}))

    found = {one.name: one for one in run_variants(VARIANTS, RECIPE, once, told)}
    assert (len(found["logged"].runs), found["logged"].failure) == (1, "out of device memory")
    assert runs.count("as_is") == 3
    assert runs.count("logged") == 2


def test_a_recipe_that_does_not_train_as_it_is_ends_it():
    with pytest.raises(SetupError, match="does not train: out of device memory"):
        run(failing=("as_is",))


def test_what_does_not_apply_says_why():
    quiet = RECIPE.model_copy(
        update={"train": {"logging_strategy": "no", "save_strategy": "no", "eval_strategy": "no"}}
    )
    found, _ = run(recipe=quiet.model_copy(update={"train": {**quiet.train, "per_device_train_batch_size": 1}}))
    assert {name: one.left_out for name, one in found.items() if one.left_out} == {
        "one_process": "the recipe trains in one process",
        "logged": "the recipe logs nothing",
        "pauses": "the recipe neither evaluates nor saves while it trains",
        "micro_batch_halved": "a micro-batch has one row",
    }
