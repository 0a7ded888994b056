"""What a valid recipe says in vain."""

from __future__ import annotations

import pytest

from hf_efficient.recipe.load import load_recipe, recipe_remarks

EVALUATED = "data.eval_fraction=0.1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["train.eval_steps=4"], ["eval_steps=4: train.eval_steps: has no effect, because train.eval_strategy is no"]),
        (
            [EVALUATED, "train.eval_strategy=epoch", "train.eval_steps=4"],
            ["eval_steps=4: train.eval_steps: has no effect, because train.eval_strategy is epoch"],
        ),
        (
            ["train.save_strategy=no", "train.save_steps=4", "train.logging_strategy=epoch", "train.logging_steps=4"],
            [
                "save_steps=4: train.save_steps: has no effect, because train.save_strategy is no",
                "logging_steps=4: train.logging_steps: has no effect, because train.logging_strategy is epoch",
            ],
        ),
        ([EVALUATED, "train.eval_strategy=steps", "train.eval_steps=4"], []),
        (["train.save_steps=4", "train.logging_steps=4"], []),
        (["train.save_strategy=no"], []),
        (["train.eval_steps=null"], []),
    ],
)
def test_steps_that_nothing_counts(write, flags, said):
    found = recipe_remarks(load_recipe(write(), flags))
    strategies = [line.split("because ")[1].split(" is ")[0] for line in said]
    assert found == [
        f"command line: train.{line}. Write {strategy}: steps, or remove it."
        for line, strategy in zip(said, strategies, strict=True)
    ]


def test_a_file_is_named_with_its_line(write):
    text = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\ntrain:\n  eval_steps: 4\noutput_dir: o\n"
    (said,) = recipe_remarks(load_recipe(write(text)))
    assert said.startswith("r.yaml:5: train.eval_steps: has no effect")
