"""What a rule sees, and the list of all rules: those of the table ``recipe_rules.yaml``, and then the functions."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hf_efficient.facts.tables import rows
from hf_efficient.recipe.objectives import OBJECTIVES, TrainingObjective
from hf_efficient.recipe.schema import ProfileSection, Recipe
from hf_efficient.recipe.train_fields import TrainField

Contradiction = tuple[str, str, str]  # dotted key, what is wrong, what to write instead
_READS: dict[str, tuple[str, ...]] = {
    "trains": ("objective",),
    "bits": ("adapter.quantization",),
    "packs": ("train.packing", "train.eval_packing"),
    "profiles": ("profile",),
    "has_evaluation_data": ("data.eval", "data.eval_fraction"),
}
"""Properties of ``Settings`` that the table may name, and the keys that they read."""
_NAMED = re.compile(r"\{([a-z_.]+)\}")


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

    def value(self, key: str) -> Any:
        """Of a dotted key, or a property of ``_READS``; None in a section that is not there."""
        first, _, rest = key.partition(".")
        if first == "train":
            return self.train(rest)
        held = getattr(self if first in _READS else self.recipe, first)
        for name in filter(None, rest.split(".")):
            held = None if held is None else getattr(held, name)
        return held

    def filled(self, text: str) -> str:
        """A text of a table with the values that it names in braces."""
        return _NAMED.sub(lambda name: str(self.value(name[1])), text)

    @property
    def trains(self) -> TrainingObjective:
        return OBJECTIVES[self.recipe.objective]

    @property
    def bits(self) -> int:
        """Of a quantized base."""
        quantization = self.recipe.adapter.quantization
        return 4 if quantization is None else quantization.bits

    @property
    def packs(self) -> bool:
        return bool(self.train("packing") or self.train("eval_packing"))

    @property
    def profiles(self) -> bool:
        return self.recipe.profile != ProfileSection()

    @property
    def has_evaluation_data(self) -> bool:
        return bool(self.recipe.data.eval) or self.recipe.data.eval_fraction is not None


Check = Callable[[Settings], Iterator[Contradiction]]


class Rule(NamedTuple):
    """A check between sections; it is left out where one of the keys that it reads is itself wrong."""

    reads: tuple[str, ...]
    check: Check


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return not _holds(value, wanted["not"])
    if isinstance(wanted, bool):
        return bool(value) == wanted
    return value in wanted if isinstance(wanted, list) else value == wanted


def all_hold(when: Mapping[str, Any], value: Callable[[str], Any]) -> bool:
    """Whether the ``value`` of every name is as ``when`` wants it; ``recipe_rules.yaml`` says how that is written."""
    return all(_holds(value(name), wanted) for name, wanted in when.items())


def _of_row(key: str, row: Mapping[str, Any]) -> Rule:
    when = {key if name == "it" else name: wanted for name, wanted in row["when"].items()}
    names = dict.fromkeys([*when, *_NAMED.findall(row["message"] + row["remedy"])])

    def check(settings: Settings) -> Iterator[Contradiction]:
        if all_hold(when, settings.value):
            yield key, settings.filled(row["message"]), settings.filled(row["remedy"])

    return Rule(tuple(read for name in names for read in _READS.get(name.partition(".")[0], (name,))), check)


RULES = [
    _of_row(key, row)
    for row in rows("recipe_rules")
    for key in (row["key"] if isinstance(row["key"], list) else [row["key"]])
]


def rule(*reads: str) -> Callable[[Check], Check]:
    """Register a rule with the dotted keys that it reads; a section stands for all keys in it."""

    def register(check: Check) -> Check:
        RULES.append(Rule(reads, check))
        return check

    return register
