"""The precision that a recipe trains in."""

from __future__ import annotations

import pytest

from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import mixed_precision


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [([], "bf16"), (["train.bf16=false"], "no"), (["train.bf16=false", "train.fp16=true"], "fp16")],
)
def test_what_accelerate_calls_it(overrides, expected):
    assert mixed_precision(load_recipe("llama3.2-1b/lora", overrides)) == expected
