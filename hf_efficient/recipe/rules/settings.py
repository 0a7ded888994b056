"""What a rule sees, and how it says what it reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import TrainField

Contradiction = tuple[str, str, str]
"""Dotted key, what is wrong, what to write instead."""


@dataclass(frozen=True)
class Settings:
    """A recipe with the defaults of its configuration class.

    Attributes:
        recipe: valid by itself, section for section.
        fields: the fields of ``train:`` for the recipe's method.
    """

    recipe: Recipe
    fields: Mapping[str, TrainField]

    def train(self, name: str) -> Any:
        """The value of a field of ``train:``, or the class's default; None where there is no such field."""
        if name in self.recipe.train:
            return self.recipe.train[name]
        return self.fields[name].default if name in self.fields else None

    def was_set(self, key: str) -> bool:
        """Whether a file or a flag set the key, or something below it."""
        return any(
            (name == key or name.startswith(f"{key}.")) and origin.is_set
            for name, origin in self.recipe.provenance.items()
        )

    @property
    def has_evaluation_data(self) -> bool:
        """Whether there are examples to evaluate on."""
        return bool(self.recipe.data.eval) or self.recipe.data.eval_fraction is not None

    @property
    def evaluates(self) -> bool:
        """Whether training stops for evaluations."""
        return self.train("eval_strategy") != "no"


class Rule(Protocol):
    """A check between sections."""

    __name__: str
    reads: tuple[str, ...]

    def __call__(self, settings: Settings) -> list[Contradiction]: ...


def reads(*keys: str) -> Callable[[Callable[[Settings], list[Contradiction]]], Rule]:
    """Note the dotted keys that a rule reads; a section stands for all keys in it."""

    def note(check: Callable[[Settings], list[Contradiction]]) -> Rule:
        rule = cast(Rule, check)
        rule.reads = keys
        return rule

    return note
