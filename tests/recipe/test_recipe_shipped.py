from __future__ import annotations

from pathlib import Path

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.files import ShippedRecipe, find_recipe, list_recipes, near_names, shipped_root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "shipped"
    for name, text in {
        "llama/qlora.yaml": "extends: ../bases/b.yaml\ndescription: QLoRA of a llama\n",
        "llama/lora.yaml": "extends: ../bases/b.yaml\n",
        "quickstart.yaml": "name: q\n",
        "broken.yaml": "a: [\n",
        "bases/b.yaml": "description: from the base\n",
        "accelerate/ddp.yaml": "x: 1\n",
        "llama/notes.txt": "no recipe\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_the_list_has_all_recipes_but_bases(root):
    assert list_recipes(root) == [
        ShippedRecipe(
            "broken",
            root / "broken.yaml",
            f"does not resolve: {root}/broken.yaml:2: is not valid YAML: while parsing a flow node,"
            " expected the node"
            " content, but found '<stream end>' (column 1).",
        ),
        ShippedRecipe("llama/lora", root / "llama/lora.yaml", "from the base"),
        ShippedRecipe("llama/qlora", root / "llama/qlora.yaml", "QLoRA of a llama"),
        ShippedRecipe("quickstart", root / "quickstart.yaml", ""),
    ]


def test_a_missing_folder_has_no_recipes(tmp_path):
    assert list_recipes(tmp_path / "gone") == []


def test_a_name_is_found(root):
    assert find_recipe("llama/qlora", root) == root / "llama/qlora.yaml"


def test_a_path_is_taken_as_it_is(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("gone.yaml", root) == Path("gone.yaml")
    assert find_recipe(Path("quickstart"), root) == Path("quickstart")


def test_a_file_goes_before_a_shipped_name_and_a_folder_does_not(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("quickstart").mkdir()
    assert find_recipe("quickstart", root) == root / "quickstart.yaml"
    Path("llama").mkdir()
    Path("llama/qlora").write_text("", encoding="utf-8")
    assert find_recipe("llama/qlora", root) == Path("llama/qlora")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("lama/qlora", "Did you mean llama/qlora?"),
        ("qlora", "Did you mean llama/qlora?"),
        ("llama", "Did you mean llama/lora or llama/qlora?"),
        ("xyz", "`hf-efficient recipes` lists those that are shipped."),
        ("bases/b", "`hf-efficient recipes` lists those that are shipped."),
        ("a\0b", "`hf-efficient recipes` lists those that are shipped."),
        ("x" * 5000, "`hf-efficient recipes` lists those that are shipped."),
    ],
)
def test_another_name_is_refused(root, name, remedy):
    with pytest.raises(RecipeError) as caught:
        find_recipe(name, root)
    assert str(caught.value) == f"{name}: is neither a file nor the name of a shipped recipe. {remedy}"


def test_the_root_of_a_checkout_holds_the_recipes():
    assert shipped_root() == Path(__file__).resolve().parents[2] / "recipes"
    assert "quickstart/qlora" in {recipe.name for recipe in list_recipes()}


def test_a_part_of_a_name_is_near_to_at_most_five_names_the_quickstart_first():
    names = [f"{model}/{kind}" for model in ("a", "b", "c", "d", "e", "quickstart") for kind in ("lora", "dora")]
    assert near_names("lora", names) == ["quickstart/lora", "a/lora", "b/lora", "c/lora", "d/lora"]
    assert near_names("quickstart/lra", names) == ["quickstart/lora"]
    assert near_names("something", names) == []
