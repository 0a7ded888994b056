"""The pages of docs/ say what the code says: those made from it, and the recipe keys of those made by hand."""

import importlib.util
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import typer

from hf_efficient.cli.app import _app
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


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_modules_that_a_page_names_exist(page: Path):
    for name in set(re.findall(r"\bhf_efficient\.[a-z_.]+[a-z]", page.read_text(encoding="utf-8"))):
        whole = DOCS.parent / name.replace(".", "/")
        places = [place for place in (whole, whole.parent) if place.is_dir() or place.with_suffix(".py").is_file()]
        assert places, name
        assert whole in places or re.search(rf"\b{whole.name}\b", text_of(places[0])), name


def text_of(place: Path) -> str:
    return (place / "__init__.py" if place.is_dir() else place.with_suffix(".py")).read_text(encoding="utf-8")


KEY = re.compile(r"`((?:model|adapter|data|train|distributed|cost|budget|efficiency|profile|evaluate)\.[a-z0-9_.]+)")


@pytest.mark.parametrize("page", ["coming-from.md", "preference-tuning.md", "after-training.md", "faq.md"])
def test_the_recipe_keys_of_a_page_exist(page: str):
    named = set(KEY.findall((DOCS / page).read_text(encoding="utf-8")))
    known = {"train." + name for method in ("sft", "dpo", "grpo", "distill_on_policy") for name in train_fields(method)}
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


WRITTEN = re.compile(r"^(?:\$ )?(hf-efficient [^\n`]*)|`(hf-efficient [^\n`]*)`", re.MULTILINE)
PAGES_WITH_COMMANDS = sorted(
    page for pattern in ("README.md", "docs/*.md", "labs/*.md", "benchmarks/*.md") for page in DOCS.parent.glob(pattern)
)


def unknown(command: str, known: Mapping[str, set[str]]) -> str | None:
    """What of a written command the command line does not have: its name, or a flag."""
    words = shlex.split(command.split(";")[0], comments=True)[1:]
    name = words[0] if words and not words[0].startswith("-") else ""
    if name.isupper() or name == "...":
        return None
    flags = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    return name if name not in known else next(iter(sorted(flags - known[name])), None) if name != "run" else None


@pytest.fixture(scope="module")
def flags_of_commands() -> dict[str, set[str]]:
    group = typer.main.get_command(_app)
    context = group.make_context("hf-efficient", [], resilient_parsing=True)
    commands = {"": group} | {name: group.get_command(context, name) for name in group.list_commands(context)}
    known = {}
    for name, command in commands.items():
        below = [command, *getattr(command, "commands", {}).values()]
        options = [one for each in below for one in each.params]
        known[name] = {flag for one in options for flag in (*one.opts, *one.secondary_opts)} | {"--help", "--debug"}
    return known


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_written_commands_exist_with_their_flags(page: Path, flags_of_commands: dict[str, set[str]]):
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    written = [first or second for first, second in WRITTEN.findall(text)]
    wrong = {one: found for one in written if (found := unknown(one, flags_of_commands)) is not None}
    assert not wrong


def test_a_wrong_command_and_a_wrong_flag_are_seen(flags_of_commands: dict[str, set[str]]):
    assert unknown("hf-efficient fly my.yaml", flags_of_commands) == "fly"
    assert unknown("hf-efficient plan my.yaml --num-gpu 4 # four", flags_of_commands) == "--num-gpu"
    assert unknown("hf-efficient plan my.yaml --num-gpus 4 --no-data", flags_of_commands) is None
