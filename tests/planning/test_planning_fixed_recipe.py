"""The recipe that ``plan --fix`` writes."""

import pytest
from planned_recipes import tiny_recipe

from hf_efficient.errors import OutputError
from hf_efficient.recipe.load import check_new_file, fixed_recipe, load_recipe, write_new_file

CHANGE = {"train.max_length": 64, "adapter.method": "qlora"}


def test_the_text(tmp_path):
    recipe = tiny_recipe(tmp_path)
    assert fixed_recipe(recipe, CHANGE, tmp_path / "out.yaml", "Fits.") == (
        "# Fits.\nextends: r.yaml\ntrain:\n  max_length: 64\nadapter:\n  method: qlora\n"
    )
    text = fixed_recipe(load_recipe("llama3.1-8b/lora"), {"train.max_length": 64}, tmp_path / "out.yaml", "Fits.")
    assert text == "# Fits.\nextends: llama3.1-8b/lora\ntrain:\n  max_length: 64\n"


def test_it_is_read_as_the_original_with_the_change(tmp_path):
    (tmp_path / "there").mkdir()
    path = tmp_path / "there" / "out.yaml"
    flags = ["data.train.0.weight=2", "data.eval=[]", "train.optim=sgd", "budget={usd: 3}"]
    recipe = tiny_recipe(tmp_path, *flags)
    write_new_file(path, fixed_recipe(recipe, CHANGE, path, "Fits."), "--fix")
    fixed = load_recipe(path)
    expected = load_recipe(tmp_path / "r.yaml", [*flags, "train.max_length=64", "adapter.method=qlora"])
    assert fixed.model_dump() == expected.model_dump()
    assert "extends: ../r.yaml\n" in path.read_text(encoding="utf-8")
    path = tmp_path / "out.yaml"
    recipe = tiny_recipe(tmp_path, "train.max_length=512")
    write_new_file(path, fixed_recipe(recipe, CHANGE, path, "Fits."), "--fix")
    assert load_recipe(path).train["max_length"] == 64


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("r.yaml", "exists already. Write the name of a new file, or remove it."),
        ("none/out.yaml", "there is no folder"),
        ("out.json", "is not named like a recipe. Write a name that ends in .yaml."),
        ("out", "is not named like a recipe"),
    ],
)
def test_what_cannot_be_written_is_refused_first(tmp_path, name, told):
    tiny_recipe(tmp_path)
    with pytest.raises(OutputError, match=r"^--fix: ") as raised:
        check_new_file(tmp_path / name, "--fix")
    assert told in str(raised.value)


def test_what_appeared_meanwhile_and_a_link_are_kept(tmp_path):
    path = tmp_path / "out.yaml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"out\.yaml cannot be written: File exists"):
        write_new_file(path, "other", "--fix")
    assert path.read_text(encoding="utf-8") == "mine"
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="exists already"):
        check_new_file(tmp_path / "link.yaml", "--fix")
