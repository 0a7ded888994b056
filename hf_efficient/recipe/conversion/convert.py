"""The room's way from another tool's YAML to a recipe that validates, with a list of what is not in it."""

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from hf_efficient.errors import RecipeError
from hf_efficient.facts.tables import key_table
from hf_efficient.recipe.conversion.axolotl import from_axolotl
from hf_efficient.recipe.conversion.draft import Draft
from hf_efficient.recipe.conversion.trl import from_trl
from hf_efficient.recipe.files import read_recipe_text, refused
from hf_efficient.recipe.load import check_text, dump_yaml
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import found, parse_yaml

Tool = Literal["trl", "axolotl"]

_NAMES: dict[Tool, str] = {"trl": "TRL", "axolotl": "Axolotl"}
_MODEL: dict[Tool, str] = {"trl": "model_name_or_path", "axolotl": "base_model"}
_DATA: dict[Tool, str] = {"trl": "dataset_name", "axolotl": "datasets"}
_RECIPE = ("extends", "model", "data", "train")
_LLAMA_FACTORY = ("finetuning_type", "stage", "cutoff_len", "dataset_dir")
_WIDTH = 100


def convert_file(path: Path, tool: Tool | None, name: str) -> tuple[str, list[str]]:
    """A recipe's text, and in sentences what of the source is not in it. ``tool`` None: recognised by the keys.
    Raises ``RecipeError``: unreadable, no known tool's, or without model or data."""
    keys = parse_yaml(read_recipe_text(path), Origin(str(path))).plain()
    if not isinstance(keys, dict) or not keys:
        held = "is empty" if keys is None or keys == {} else f"holds {found(keys)}"
        raise refused(path, "", f"{held}; a configuration is a mapping of keys to values.", "Check the file.")
    tool = tool or recognise(path, keys)
    draft = (from_trl if tool == "trl" else from_axolotl)(keys, str(path))
    draft.put("name", name)
    for target, key in (("model.id", _MODEL[tool]), ("data.train", _DATA[tool])):
        if not draft.values.get(target):
            raise refused(path, key, "is missing.", f"Add it: a recipe needs `{target}`.")
    text = _valid(draft, path, tool)
    return text, [*(f"not mapped: {note}" for note in draft.notes), *(f"otherwise: {one}" for one in draft.remarks)]


def recognise(path: Path, keys: Mapping[str, Any]) -> Tool:
    """The tool whose own keys the file has most of; ``RecipeError`` where that is none, or both alike."""
    of_trl, of_axolotl = (len(set(keys) & set(key_table(tool)["recognised"])) for tool in _NAMES)
    if len(set(keys) & set(_RECIPE)) > 1:
        raise refused(path, "", "looks like a recipe already.", f"Run `hf-efficient validate {path}`.")
    if set(keys) & set(_LLAMA_FACTORY):
        message = "looks like a file of LLaMA-Factory; files of TRL and Axolotl are converted."
        raise refused(path, "", message, "docs/coming-from.md has its keys. Else write --from.")
    if of_trl == of_axolotl:
        message = f"its keys ({', '.join(list(keys)[:5])}) are not clearly TRL's or Axolotl's."
        raise refused(path, "", message, "Write --from trl or axolotl.")
    return "trl" if of_trl > of_axolotl else "axolotl"


def _valid(draft: Draft, path: Path, tool: Tool) -> str:
    first = f"# From {path.name} of {_NAMES[tool]}. Defaults that differ are written out."
    for _ in range(len(draft.values)):
        text = "\n".join([first, dump_yaml(draft.nested()) + "\n".join(_comments(draft)), ""])
        try:
            check_text(text, f"{draft.values['name']}.yaml")
        except RecipeError as error:
            if not draft.refuse(error.problems):
                raise
        else:
            return text
    raise AssertionError("each turn takes at least one value back")


def _comments(draft: Draft) -> Iterator[str]:
    for title, lines in (("Not mapped", draft.notes), ("Otherwise than there", draft.remarks)):
        if lines:
            yield f"# {title}:"
            for line in lines:
                yield from textwrap.wrap(line, _WIDTH, initial_indent="# - ", subsequent_indent="#   ")
    if draft.needless:
        line = f"Not needed: {', '.join(draft.needless)}."
        yield from textwrap.wrap(line, _WIDTH, initial_indent="# ", subsequent_indent="#   ")
