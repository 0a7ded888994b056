"""What a completion is worth: built-in rewards, and functions of the user's own, as TRL's ``GRPOTrainer`` calls them.

A reward takes ``completions`` (strings, or lists with the assistant's message) and the columns of their rows, and
returns a number for each.
"""

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import datasets

from hf_efficient.errors import DataError, SetupError, first_line
from hf_efficient.recipe.schema import RewardSection

Reward = Callable[..., list[float]]

_COMPARING = ("exact_match", "number_match")
_NUMBER = re.compile(r"-?(?:\d[\d,]*(?:\.\d+)?|\.\d+)")


def last_number(text: str) -> float | None:
    """The last number in a text, without commas between its digits; what follows the last ``####``, where there is
    one, as in GSM8K's answers. None where there is none. Hand-worked: "It is 1,250." gives 1250.0."""
    found = _NUMBER.findall(text.rpartition("####")[2])
    return float(found[-1].replace(",", "")) if found else None


def exact_match(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the completion is the answer, white space aside."""
    pairs = zip(completions, answer, strict=True)
    return [float(_text(one).split() == expected.split()) for one, expected in pairs]


def number_match(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """1 where the last number of the completion is that of the answer."""
    pairs = zip(completions, answer, strict=True)
    return [float(last_number(_text(one)) == last_number(expected)) for one, expected in pairs]


def make_rewards(sections: Sequence[RewardSection]) -> list[Reward]:
    """The functions of a recipe in its order; each has the name under which TRL logs it. Raises ``SetupError``: a
    module or function of the user's own that is not there."""
    return [
        _own(one.function, f"rewards.{index}.function") if one.function is not None else _built_in(one, index)
        for index, one in enumerate(sections)
    ]


def check_answers(sections: Sequence[RewardSection], rows: datasets.Dataset) -> None:
    for name in [one.name for one in sections if one.name in _COMPARING]:
        for row in rows:
            if row["answer"] is None or not row["answer"].strip():
                raise DataError(
                    f"{row['where']}: 'answer' is missing, and the reward {name} compares with it. Add the column, "
                    "rename one (`columns: {answer: solution}`), or remove the reward."
                )
            if name == "number_match" and last_number(row["answer"]) is None:
                raise DataError(
                    f"{row['where']}: 'answer' holds no number, and the reward number_match compares numbers. "
                    "Correct the row, or write exact_match."
                )


def _built_in(section: RewardSection, index: int) -> Reward:
    if section.name == "format":
        reward = _format(section.pattern or "")
        reward.__name__ = f"format_{index}" if index else "format"  # there may be several
        return reward
    if section.name == "length":
        return _length(section.tokens or 1)
    return exact_match if section.name == "exact_match" else number_match


def _format(pattern: str) -> Reward:
    wanted = re.compile(pattern, re.DOTALL)

    def matches(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(wanted.fullmatch(_text(one).strip()) is not None) for one in completions]

    return matches


def _length(most: int) -> Reward:
    """Hand-worked, of 100 tokens: 100 give 1, 150 give 0.5, 200 and more 0."""

    def length(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [min(1.0, max(0.0, 2 - len(ids) / most)) for ids in completion_ids]

    return length


def _own(name: str, key: str) -> Reward:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise SetupError(
            f"{key}: {module} cannot be imported: {first_line(error)}. Install it, or name its folder in PYTHONPATH."
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise SetupError(f"{key}: {module} has no {path}. Write module:function.")
        found = getattr(found, part)
    if not callable(found):
        raise SetupError(f"{key}: {name} is no function. Write module:function.")
    own: Reward = found
    return own


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])
