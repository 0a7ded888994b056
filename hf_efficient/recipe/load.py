"""A recipe file to a checked ``Recipe`` that knows where each value was set; recipes written, and read back."""

import copy
import dataclasses
import difflib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hf_efficient.errors import OutputError, Problem, RecipeError, writing
from hf_efficient.recipe import files
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.rules import RULES, Settings
from hf_efficient.recipe.rules.distributed import as_planned, names_accumulation, unnamed_batch
from hf_efficient.recipe.schema import DERIVED, Origin, ProfileSection, Recipe
from hf_efficient.recipe.schema_check import Finding, check_schema, to_problems, unset
from hf_efficient.recipe.train_fields import checked_recipe, train_fields
from hf_efficient.recipe.tree import KeyPath, Node, dotted, flat, read_scalar, wrap

_DEFAULT = Origin("default")
# Stands in for a required value that is missing or wrong, while the rules look for further problems.
_PLACEHOLDERS: dict[tuple[str, ...], Any] = dict.fromkeys((("name",), ("model", "id"), ("output_dir",)), "?")
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
    file = files.find_recipe(path)
    return _checked(*files.compose(file, overrides), file)


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
    return _checked(*files.apply_overrides(tree, flags), recipe.path)


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
        of = Node(None if file is None else files.name_of_file(file), _DEFAULT) if key == "name" else tree.child("name")
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
    for path, value in _PLACEHOLDERS.items():
        held = sound.get(path)
        if held is None or not held.value:
            sound = files.set_at(sound, list(path), wrap(value, _DEFAULT))
    if check_schema(sound, checked_recipe(objective)):
        return
    settings = Settings(_build(sound, None), train_fields(objective))
    for rule in RULES:
        reads = [_key_path(key) for key in rule.reads]
        if not any(path[: len(key)] == key[: len(path)] for path in wrong for key in reads):
            yield from (Finding(_key_path(key), message, remedy) for key, message, remedy in rule.check(settings))


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
        return (f"no such file: {name}.", nearest_file(path)) if looks_local(name) else None
    except (OSError, RuntimeError):  # reading it says why
        return None


def looks_local(name: str) -> bool:
    """Hub names are ``name`` or ``owner/name``; what cannot be one, or has a file's suffix, is a path."""
    path = Path(name)
    is_path = name.startswith((".", "~", os.sep)) or name.endswith("/") or "\\" in name or len(path.parts) > 2
    return is_path or path.suffix.lower() in _FILE_SUFFIXES or (len(path.parts) == 2 and path.parent.is_dir())


def nearest_file(path: Path) -> str:
    """In words: what the name of a missing file or folder was probably meant to be."""
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, sorted(entry.name for entry in path.parent.iterdir()), n=1, cutoff=0.7)
    return f"Nearest in {path.parent}: {near[0]}." if near else ""


class _Dumper(yaml.SafeDumper):
    """Writes text in quotes wherever either version of YAML would misread it, and no aliases."""

    long_text: str | None = None

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.Node:
        style = _style(text) or (self.long_text if "\n" in text else None)
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


class _BlockDumper(_Dumper):
    long_text = "|"


def _style(text: str) -> str | None:
    """The quotes that a text needs; None leaves it to PyYAML, which knows YAML 1.1 and the indicators."""
    # Only an escape keeps these apart from a line feed.
    if any(character in text for character in "\r\x85\u2028\u2029"):
        return '"'
    try:
        return None if isinstance(read_scalar(text), str) else "'"
    except ValueError:
        return "'"


def dump_yaml(data: Any, *, blocks: bool = False) -> str:
    """Plain data as YAML that YAML 1.1 and 1.2 read alike; with ``blocks``, long text line by line (``|``)."""
    dumper = _BlockDumper if blocks else _Dumper
    return yaml.dump(data, Dumper=dumper, sort_keys=False, allow_unicode=True, width=100)


def rendered(template: Path, **values: Any) -> str:
    """A text file from a template beside the code that writes it; its filter ``yaml`` writes a value on one line."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,
    )
    environment.filters["yaml"] = lambda value: yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
    )[1:-2]
    return environment.get_template(template.name).render(values)


def check_new_file(path: Path, flag: str, force: bool | None = None) -> None:
    """``OutputError``: it exists, has no folder, or no recipe's name. ``force`` None: there is no flag ``--force``."""
    if path.suffix not in files.SUFFIXES:
        raise OutputError(f"{flag}: {path} is not named like a recipe. Write a name that ends in .yaml.")
    if path.is_dir() or ((path.exists() or path.is_symlink()) and not force):
        otherwise = "remove it" if force is None else "add --force to overwrite it"
        raise OutputError(f"{flag}: {path} exists already. Write the name of a new file, or {otherwise}.")
    if not path.parent.is_dir():
        raise OutputError(f"{flag}: there is no folder {path.parent}. Make it, or write the name of a file elsewhere.")


def write_new_file(path: Path, text: str, flag: str, force: bool = False) -> None:
    """Write a file named by ``flag``; ``OutputError`` where it is there, without ``force``, or cannot be written."""
    with writing(flag, path), path.open("w" if force else "x", encoding="utf-8") as file:
        file.write(text)


def fixed_recipe(
    recipe: Recipe, overrides: Mapping[str, Any], path: Path, remark: str, comments: Mapping[str, str] | None = None
) -> str:
    """A recipe that extends another one, command line included; ``comments`` stand behind the lines of their keys."""
    assert recipe.path is not None
    values: dict[str, Any] = {"extends": _name_of(recipe.path, path.parent)}
    flags = (key for key, origin in recipe.provenance.items() if origin.source == "command line")
    for key, value in {**whole_values(recipe.model_dump(), flags), **overrides}.items():
        put_nested(values, key, value)
    return f"# {remark}\n{_commented(dump_yaml(values), comments or {})}"


def _commented(text: str, comments: Mapping[str, str]) -> str:
    lines, path = [], list[str]()
    for line in text.splitlines():
        name = line.lstrip(" ")
        path[(len(line) - len(name)) // 2 :] = [name.partition(":")[0]]
        said = comments.get(".".join(path))
        lines.append(f"{line}  # {said}" if said else line)
    return "\n".join(lines) + "\n"


def put_nested(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    held = values.get(last)
    values[last] = {**held, **value} if isinstance(held, dict) and isinstance(value, dict) else value


def _name_of(original: Path, folder: Path) -> str:
    whole = original.resolve()
    for name, shipped in files.shipped_files(files.shipped_root()).items():
        if shipped.resolve() == whole:
            return name
    return Path(os.path.relpath(whole, folder.resolve())).as_posix()


def whole_values(recipe: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """What the keys of leaves hold, by dotted key; a list as a whole, which is how a recipe replaces it."""
    found: dict[str, Any] = {}
    for key in keys:
        value: Any = recipe
        parts: list[str] = []
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
            parts.append(part)
        if parts:
            found[".".join(parts)] = value
    return found


class ResolvedValue(NamedTuple):
    """One leaf: its dotted key, its value (of a run: as YAML on one line), and the file and line, or flag, of it."""

    key: str
    value: Any
    set_by: str | None


class ResolvedRecipe(NamedTuple):
    """What ``recipe.resolved.yaml`` holds: every leaf, and the versions and hardware that the run had."""

    values: list[ResolvedValue]
    environment: Mapping[str, Any]
    name: str = ""


def resolved_parts(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Recipe, provenance and environment that a run has written; ``OutputError``: unreadable, or no resolved recipe."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise OutputError(f"{path}: cannot be read: {error}") from error
    held = data if isinstance(data, dict) else {}
    recipe, origins, environment = (
        part if isinstance(part, dict) else {} for part in map(held.get, ("recipe", "provenance", "environment"))
    )
    if not recipe:
        raise OutputError(f"{path}: holds no recipe; a run writes it when its training starts")
    return recipe, origins, environment


def read_resolved(path: Path) -> ResolvedRecipe:
    """The same as rows; raises as ``resolved_parts``."""
    recipe, origins, environment = resolved_parts(path)
    values = [
        ResolvedValue(key, dump_yaml([value])[2:-1], str(origins[key]) if origins.get(key) is not None else None)
        for key, value in flat(recipe).items()
    ]
    return ResolvedRecipe(values, environment, str(recipe.get("name") or ""))


def differing_keys(recipes: Sequence[ResolvedRecipe]) -> dict[str, list[str | None]]:
    """Keys whose values are not all alike, with these recipe by recipe; None where one has no such key."""
    held = [{value.key: value.value for value in recipe.values} for recipe in recipes]
    rows = {key: [each.get(key) for each in held] for key in dict.fromkeys(key for each in held for key in each)}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}
