"""The pages of docs/ say what the code says: those made from it, and the recipe keys of those made by hand."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from hf_efficient.facts.models import licence_of
from hf_efficient.recipe.files import list_recipes, shipped_plans
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import train_fields

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "recipe-keys.md", "rules.md", "recipe-table.md"])
def test_a_page_is_current(generate: ModuleType, page: str):
    assert generate.main(["--check", page]) == 0, "run `make docs`"


def test_every_shipped_recipe_is_planned_as_it_stands(generate: ModuleType):
    """That the plans themselves are current is held by the slow test below."""
    held = {name: (one.model, one.fingerprint) for name, one in shipped_plans().items()}
    own = {one.name: (load_recipe(one.name).model.id, generate.fingerprint(one.name)) for one in list_recipes()}
    assert held == own, "run `make docs`"
    assert all(one.licence == licence_of(one.model) is not None for one in shipped_plans().values())


@pytest.mark.slow
def test_the_plans_of_the_shipped_recipes_are_current(generate: ModuleType):
    assert generate.main(["--check", "plans.json"]) == 0, "run `make docs`"


def test_a_stale_page_is_named_and_left_alone(generate: ModuleType, tmp_path: Path, monkeypatch, capsys):
    (tmp_path / "rules.md").write_text("old\n", encoding="utf-8")
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    assert generate.main(["--check", "rules.md"]) == 1
    assert capsys.readouterr().out == "rules.md stale: run `make docs`\n"
    assert (tmp_path / "rules.md").read_text(encoding="utf-8") == "old\n"
    assert generate.main(["rules.md"]) == 0
    assert generate.main(["--check", "rules.md"]) == 0


def test_what_a_key_takes(generate: ModuleType):
    schema = {"$defs": {"Part": {"properties": {"a": {"type": "boolean", "default": True}}, "description": "A part."}}}
    properties = {
        "count": {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"const": "auto"}], "default": 1},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}, "description": "Several."},
    }
    assert list(generate.key_rows(properties, schema, "x.", ["parts"])) == [
        ["`x.count`", "integer > 0 or `auto`", "`1`", ""],
        ["`x.parts`", "list of sections", "required", "Several."],
        ["`x.parts.N.a`", "boolean", "`true`", ""],
    ]


KEY = re.compile(r"`((?:model|adapter|data|train|distributed|cost|budget|efficiency|profile|evaluate)\.[a-z0-9_.]+)")


@pytest.mark.parametrize("page", ["coming-from.md", "preference-tuning.md", "after-training.md", "faq.md"])
def test_the_recipe_keys_of_a_page_exist(page: str):
    named = set(KEY.findall((DOCS / page).read_text(encoding="utf-8")))
    known = {"train." + name for method in ("sft", "dpo", "grpo") for name in train_fields(method)}
    for section, field in Recipe.model_fields.items():
        known |= {f"{section}.{key}" for key in keys_below(field.annotation)}
    assert named
    assert named <= known


def keys_below(annotation: Any) -> Iterator[str]:
    """Dotted keys of a section, or of the section in a union."""
    for kind in (annotation, *get_args(annotation)):
        for name, field in getattr(kind, "model_fields", {}).items():
            yield name
            yield from (f"{name}.{key}" for key in keys_below(field.annotation))


def test_the_preference_recipe_is_valid(tmp_path: Path):
    text = (DOCS / "preference-tuning.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- recipe: checked by the tests -->\n```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    (tmp_path / "my-dpo.yaml").write_text(block.group(1), encoding="utf-8")
    assert load_recipe(str(tmp_path / "my-dpo.yaml")).train["beta"] == 0.1
