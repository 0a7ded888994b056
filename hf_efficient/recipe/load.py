"""A recipe file to a checked ``Recipe`` that knows where each of its values was set."""

import copy
import dataclasses
import difflib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_efficient.errors import Problem, RecipeError
from hf_efficient.recipe.files import apply_overrides, compose, find_recipe, name_of_file
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules import RULES, Settings
from hf_efficient.recipe.rules.distributed import as_planned, names_accumulation, unnamed_batch
from hf_efficient.recipe.schema import DERIVED, Origin, ProfileSection, Recipe
from hf_efficient.recipe.schema_check import Finding, check_schema, to_problems, unset
from hf_efficient.recipe.train_fields import checked_recipe, train_fields
from hf_efficient.recipe.tree import KeyPath, Node, dotted, wrap

_DEFAULT = Origin("default")
# Stands in for a required value that is missing or wrong, while the rules look for further problems.
_PLACEHOLDERS: dict[KeyPath, Any] = dict.fromkeys((("name",), ("model", "id"), ("output_dir",)), "?")
_PLACEHOLDERS["data", "train"] = [{"path": "?"}]
_FILE_SUFFIXES = (
    ".csv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".gz", ".tsv", ".txt", ".xlsx", ".yaml", ".yml", ".zip",
    ".zst",
)  # fmt: skip


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Resolve a recipe file, or a shipped recipe by name (``llama3.1-8b/qlora``): what it extends, the overrides
    (``a.b=value`` in order; the value is YAML, ``data.train.0.path=x`` reaches into lists), all checks. Raises
    ``RecipeError`` with all problems, each with file and line or the flag; ``SetupError``: no packages for ``train:``.
    """
    file = find_recipe(path)
    return _checked(*compose(file, overrides), file)


def check_text(text: str, name: str) -> Recipe:
    """The recipe of a text before it is written to a file ``name``; raises as ``load_recipe``."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / Path(name).name
        file.write_text(text, encoding="utf-8")
        try:
            return load_recipe(file)
        except RecipeError as error:
            named = [dataclasses.replace(one, where=one.where.replace(str(file), name)) for one in error.problems]
            raise RecipeError(named) from error


def change_recipe(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """A recipe with other values by dotted key, derived and checked as if they were on the command line."""
    tree = wrap(recipe.model_dump(), _DEFAULT)
    for path, node in list(tree.leaves()):
        node.origin = recipe.provenance.get(dotted(path), _DEFAULT)
        if node.origin.source == DERIVED:
            tree.remove(path)
    flags = [f"{key}={json.dumps(value)}" for key, value in values.items()]
    return _checked(*apply_overrides(tree, flags), recipe.path)


NO_INSTRUMENTS = {f"profile.{name}": value for name, value in ProfileSection().model_dump().items()}


def in_a_folder(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Changes for a trial of a recipe: an output directory and an accumulation of its own, no budget, no mirror."""
    changes = {"output_dir": str(folder), "existing_output": "refuse", **unnamed_batch(recipe)}
    if recipe.checkpoints.mirror is not None:
        changes["checkpoints.mirror"] = None
    return changes if recipe.budget is None else {**changes, "budget": None}


def without_pauses(recipe: Recipe) -> dict[str, Any]:
    """Changes for a trial that only steps: no evaluations, saves, reports, progress bar and plan."""
    off: dict[str, Any] = dict.fromkeys(("eval_on_start", "load_best_model_at_end", "push_to_hub"), False)
    off["resume_from_checkpoint"] = None
    changes = {f"train.{name}": value for name, value in off.items() if recipe.train.get(name) is not None}
    changes |= {"train.eval_strategy": "no", "train.save_strategy": "no", "train.report_to": "none"}
    changes |= {"train.disable_tqdm": True, "efficiency.plan": False}
    return changes if recipe.evaluate.early_stopping is None else {**changes, "evaluate.early_stopping": None}


def _checked(tree: Node, problems: list[Problem], file: Path | None) -> Recipe:
    """The recipe of a tree, with values that follow from others; the launch, which counts processes, derives again."""
    _name(tree, file)
    findings = _check(tree)
    if problems or findings:
        raise RecipeError([*to_problems(tree, findings), *problems])
    recipe = _build(tree, file)
    return recipe if names_accumulation(recipe) else as_planned(recipe)


def _check(tree: Node) -> list[Finding]:
    unset(tree, Recipe)
    said = tree.child("objective")
    objective = Recipe.model_fields["objective"].default if said is None else said.value
    if objective not in list(OBJECTIVES):
        return check_schema(tree)
    if not train_fields(objective):
        message = f"is {objective}, but the installed TRL has no {OBJECTIVES[objective].config}."
        remedy = "Install the version that had it, or train dpo."
        return [*check_schema(tree), Finding(("objective",), message, remedy)]
    known = {name for other in OBJECTIVES for name in train_fields(other)}
    unset(tree, checked_recipe(objective), known)
    findings = check_schema(tree, checked_recipe(objective))
    return findings + list(_contradictions(tree, objective, findings))


def _name(tree: Node, file: Path | None) -> None:
    """``name`` follows from the file where nobody wrote it, and ``output_dir`` from the name."""
    for key, made, source in (("name", "{}", "the name of the file"), ("output_dir", "outputs/{}", "name")):
        of = Node(None if file is None else name_of_file(file), _DEFAULT) if key == "name" else tree.child("name")
        held = tree.child(key)
        if (held is None or held.value is None) and of is not None and isinstance(of.value, str) and of.value:
            tree.value[key] = Node(made.format(of.value), Origin(DERIVED, text=source))


def _contradictions(tree: Node, objective: str, findings: list[Finding]) -> Iterator[Finding]:
    """What the rules find in the part of the recipe that is right so far, those that read a faulty key left out."""
    broken = {finding.path for finding in findings}
    wrong = broken | {finding.meant for finding in findings if finding.meant is not None}
    sound = copy.deepcopy(tree)
    # Backwards, so that removing an entry of a list does not move those that are still to be removed.
    for path in sorted(broken, key=lambda path: [(isinstance(part, str), part) for part in path], reverse=True):
        sound.remove(path)
    _fill(sound)
    if check_schema(sound, checked_recipe(objective)):
        return
    settings = Settings(_build(sound, None), train_fields(objective))
    for rule in RULES:
        reads = [_key_path(key) for key in rule.reads]
        if not any(path[: len(key)] == key[: len(path)] for path in wrong for key in reads):
            yield from (Finding(_key_path(key), message, remedy) for key, message, remedy in rule.check(settings))


def _fill(sound: Node) -> None:
    for path, value in _PLACEHOLDERS.items():
        parent = sound
        for part in path[:-1]:
            parent = parent.value.setdefault(part, Node({}, _DEFAULT))
        held = parent.child(path[-1])
        if isinstance(parent.value, dict) and not (held is not None and held.value):
            parent.value[path[-1]] = wrap(value, _DEFAULT)


def _key_path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def _build(tree: Node, file: Path | None) -> Recipe:
    recipe = Recipe.model_validate(tree.plain(), strict=True)
    given = {dotted(path): node.origin for path, node in tree.leaves()}
    recipe._path = file
    keys = (dotted(path) for path, _ in wrap(recipe.model_dump(), _DEFAULT).leaves())
    recipe._provenance = {key: given.get(key, _DEFAULT) for key in keys}
    return recipe


def check_data_files(recipe: Recipe) -> None:
    """Refuse, with ``RecipeError``, a recipe whose sources name local files that are missing."""
    named = {f"{key}.path": source.path for key, source in recipe.data.sources().items()}
    faults = {key: fault for key, path in named.items() if (fault := missing_file(path)) is not None}
    problems = [Problem(str(recipe.provenance.get(key, "")), key, *fault) for key, fault in faults.items()]
    if problems:
        raise RecipeError(problems)


def missing_file(name: str) -> tuple[str, str] | None:
    """What is wrong, and the nearest file; None where it is there, or names a builtin or a data set of the hub."""
    try:
        path = Path(name).expanduser()
        if name.startswith("builtin:") or "://" in name or path.exists():
            return None
        if path.is_symlink():
            return f"{name} is a symbolic link to a missing file: {path.readlink()}.", ""
        return (f"no such file: {name}.", _nearest_file(path)) if looks_local(name) else None
    except (OSError, RuntimeError):  # reading it says why
        return None


def looks_local(name: str) -> bool:
    """Hub names are ``name`` or ``owner/name``; what cannot be one, or has a file's suffix, is a path."""
    path = Path(name)
    is_path = name.startswith((".", "~", os.sep)) or name.endswith("/") or "\\" in name or len(path.parts) > 2
    return is_path or path.suffix.lower() in _FILE_SUFFIXES or (len(path.parts) == 2 and path.parent.is_dir())


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1)
    return f"Nearest in {path.parent}: {near[0]}." if near else ""
