"""What a rule sees, and the list of all rules."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import TrainField

Contradiction = tuple[str, str, str]  # dotted key, what is wrong, what to write instead


@dataclass(frozen=True)
class Settings:
    """A recipe whose sections are each valid, with the defaults of its configuration class."""

    recipe: Recipe
    fields: Mapping[str, TrainField]

    def train(self, name: str) -> Any:
        """The value of a field of ``train:``, or the class's default; None where there is no such field."""
        if name in self.recipe.train:
            return self.recipe.train[name]
        return self.fields[name].default if name in self.fields else None

    def was_set(self, key: str) -> bool:
        """Whether a file or a flag set the key, or something below it."""
        below = {name: origin for name, origin in self.recipe.provenance.items() if f"{name}.".startswith(f"{key}.")}
        return any(origin.is_set for origin in below.values())

    @property
    def has_evaluation_data(self) -> bool:
        return bool(self.recipe.data.eval) or self.recipe.data.eval_fraction is not None

    @property
    def evaluates(self) -> bool:
        return self.train("eval_strategy") != "no"


Check = Callable[[Settings], Iterator[Contradiction]]


class Rule(NamedTuple):
    """A check between sections; it is left out where one of the keys that it reads is itself wrong."""

    reads: tuple[str, ...]
    check: Check


RULES: list[Rule] = []


def rule(*reads: str) -> Callable[[Check], Check]:
    """Register a rule with the dotted keys that it reads; a section stands for all keys in it."""

    def register(check: Check) -> Check:
        RULES.append(Rule(reads, check))
        return check

    return register
