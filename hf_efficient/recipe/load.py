"""A recipe file to a checked ``Recipe`` that knows where each of its values was set.

Settings of a valid recipe that have no effect, in words: no mistake, but perhaps not what was meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.files import apply_overrides, compose, find_recipe
from hf_efficient.recipe.rules import RULES
from hf_efficient.recipe.rules.distributed import as_planned, names_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import DERIVED, Origin, Recipe, told_where
from hf_efficient.recipe.schema_check import Finding, check_schema, to_problems
from hf_efficient.recipe.train_fields import CONFIG_CLASSES, TrainField, check_train, train_fields
from hf_efficient.recipe.tree import KeyPath, Node, dotted, wrap

_DEFAULT = Origin("default")
# Stands in for a required value that is missing or wrong, while the rules look for further problems.
_PLACEHOLDERS: dict[KeyPath, Any] = {
    ("name",): "?",
    ("model", "id"): "?",
    ("data", "train"): [{"path": "?"}],
    ("output_dir",): "?",
}


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Resolve a recipe: what it extends, the command line's overrides, all checks.

    Args:
        path: a recipe file, or the name of a shipped recipe (``llama3.1-8b/qlora``).
        overrides: ``a.b=value`` each, laid over the file in order; the value is YAML, ``data.train.0.path=x``
            reaches into lists.

    Returns:
        The recipe; ``recipe.provenance`` says for every leaf where it was set.

    Raises:
        RecipeError: with all problems at once, each with file and line or the flag.
        SetupError: the packages that define ``train:`` are not installed.
    """
    file = find_recipe(path)
    tree, problems = compose(file, overrides)
    findings = _check(tree)
    if problems or findings:
        raise RecipeError([*to_problems(tree, findings), *problems])
    return _derived(_build(tree, file))


def change_recipe(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """A recipe with other values, checked like one that was loaded with them on the command line.

    What was derived is derived once more.

    Args:
        recipe: from ``load_recipe``; it stays as it is.
        values: by dotted key (``train.max_length``).

    Raises:
        RecipeError: the recipe contradicts itself with them.
    """
    tree = wrap(recipe.model_dump(), _DEFAULT)
    for path, node in list(tree.leaves()):
        node.origin = recipe.provenance.get(dotted(path), _DEFAULT)
        if node.origin.source == DERIVED:
            tree.remove(path)
    tree, problems = apply_overrides(tree, [f"{key}={json.dumps(value)}" for key, value in values.items()])
    findings = _check(tree)
    if problems or findings:
        raise RecipeError([*to_problems(tree, findings), *problems])
    return _derived(_build(tree, recipe.path))


def _derived(recipe: Recipe) -> Recipe:
    """With what follows from other values, as far as the recipe alone tells.

    How many processes ``auto`` stands for, or a bare ``accelerate launch`` starts, is known to the launch, which
    derives once more.
    """
    return recipe if names_accumulation(recipe) else as_planned(recipe)


def _check(tree: Node) -> list[Finding]:
    _leave_open(tree)
    method = _method(tree)
    fields = train_fields(method) if method is not None else {}
    findings = check_schema(tree, fields)
    if method is None:
        return findings
    findings += check_train(tree, method, fields)
    return findings + list(_contradictions(tree, fields, findings))


def _leave_open(tree: Node) -> None:
    """``null`` for the accumulation takes a value away that a recipe below has set, where the global batch is named."""
    path: KeyPath = ("train", "gradient_accumulation_steps")
    accumulation, batch = tree.get(path), tree.get(("distributed", "global_batch_size"))
    if accumulation is not None and accumulation.value is None and batch is not None and batch.value is not None:
        tree.remove(path)


def _method(tree: Node) -> str | None:
    """sft or dpo; None where the recipe names something else."""
    said = tree.child("method")
    method = said.value if said is not None else Recipe.model_fields["method"].default
    return method if isinstance(method, str) and method in CONFIG_CLASSES else None


def _contradictions(tree: Node, fields: Mapping[str, TrainField], findings: list[Finding]) -> Iterator[Finding]:
    """What the rules find in the part of the recipe that is right so far.

    A rule that reads a key with a problem of its own would only repeat that problem, so it is left out.
    """
    broken = {finding.path for finding in findings}
    wrong = broken | {finding.meant for finding in findings if finding.meant is not None}
    sound = tree.copy()
    # Backwards, so that removing an entry of a list does not move those that are still to be removed.
    for path in sorted(broken, key=_order, reverse=True):
        sound.remove(path)
    _fill(sound)
    if check_schema(sound, fields):
        return
    settings = Settings(_build(sound, None), fields)
    for rule in RULES:
        if any(_touches(path, key) for path in wrong for key in rule.reads):
            continue
        for key, message, remedy in rule(settings):
            yield Finding(_key_path(key), message, remedy)


def _fill(sound: Node) -> None:
    for path, value in _PLACEHOLDERS.items():
        parent = sound
        for part in path[:-1]:
            parent = parent.value.setdefault(part, Node({}, _DEFAULT))
        if isinstance(parent.value, dict) and not (path[-1] in parent.value and parent.value[path[-1]].value):
            parent.value[path[-1]] = wrap(value, _DEFAULT)


def _order(path: KeyPath) -> list[tuple[bool, str | int]]:
    return [(isinstance(part, str), part) for part in path]


def _touches(path: KeyPath, key: str) -> bool:
    """Whether one of the two lies at or below the other."""
    read = _key_path(key)
    shorter = min(len(path), len(read))
    return path[:shorter] == read[:shorter]


def _key_path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def _build(tree: Node, file: Path | None) -> Recipe:
    recipe = Recipe.model_validate(tree.plain(), strict=True)
    given = {dotted(path): node.origin for path, node in tree.leaves()}
    leaves = wrap(recipe.model_dump(), _DEFAULT).leaves()
    recipe._path = file
    recipe._provenance = {key: given.get(key, _DEFAULT) for key in (dotted(path) for path, _ in leaves)}
    return recipe


_KINDS = ("eval", "save", "logging")


def recipe_remarks(recipe: Recipe) -> list[str]:
    """A line for each of them, with where it was set; empty where there is none."""
    return list(_steps_without_strategy(Settings(recipe, train_fields(recipe.method))))


def _steps_without_strategy(settings: Settings) -> Iterator[str]:
    """``eval_steps`` and its like are read where the strategy is ``steps``."""
    for kind in _KINDS:
        key, strategy = f"train.{kind}_steps", settings.train(f"{kind}_strategy")
        if settings.was_set(key) and settings.recipe.train.get(f"{kind}_steps") is not None and strategy != "steps":
            yield (
                f"{told_where(settings.recipe, key)}{key}: has no effect, because train.{kind}_strategy is {strategy}. "
                f"Write train.{kind}_strategy: steps, or remove it."
            )
