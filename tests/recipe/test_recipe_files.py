"""Shipped recipes by name, files that extend others, and flags of the command line."""

from pathlib import Path

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.files import ShippedRecipe, apply_overrides, compose, find_recipe, list_recipes, shipped_root
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import dotted, merge, wrap


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "shipped"
    for name, text in {
        "llama/qlora.yaml": "extends: ../bases/b.yaml\ndescription: QLoRA of a llama\n",
        "llama/lora.yaml": "extends: ../bases/b.yaml\n",
        "quickstart.yaml": "name: q\n",
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
        ShippedRecipe("llama/lora", root / "llama/lora.yaml", "from the base"),
        ShippedRecipe("llama/qlora", root / "llama/qlora.yaml", "QLoRA of a llama"),
        ShippedRecipe("quickstart", root / "quickstart.yaml", ""),
    ]


def test_a_file_goes_before_a_shipped_name_and_a_folder_does_not(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("quickstart").mkdir()
    assert find_recipe("quickstart", root) == root / "quickstart.yaml"
    Path("llama").mkdir()
    Path("llama/qlora").write_text("", encoding="utf-8")
    assert find_recipe("llama/qlora", root) == Path("llama/qlora")


def test_another_name_is_refused(root):
    for name, remedy in (
        ("lama/qlora", "Did you mean llama/qlora?"),
        ("qlora", "Did you mean llama/qlora?"),
        ("llama", "Did you mean llama/lora or llama/qlora?"),
        *(
            (name, "`hf-efficient recipes` lists those that are shipped.")
            for name in ("xyz", "bases/b", "a\0b", "x" * 5000)
        ),
    ):
        with pytest.raises(RecipeError) as caught:
            find_recipe(name, root)
        assert str(caught.value) == f"{name}: is neither a file nor the name of a shipped recipe. {remedy}"


def test_the_root_of_a_checkout_holds_the_recipes():
    assert shipped_root() == Path(__file__).resolve().parents[2] / "recipes"
    assert "quickstart/qlora" in {recipe.name for recipe in list_recipes()}


def refused(path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        compose(path, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_layers_are_merged_and_lists_replaced(write):
    write("train: {seed: 1, optim: sgd}\nlist: [1, 2]\nkept: yes\n", "bases/low.yaml")
    write("extends: low.yaml\ntrain: {seed: 2, bf16: true}\n", "bases/high.yaml")
    path = write("extends: bases/high.yaml\ntrain: {bf16: false}\nlist: [3]\n")
    tree, problems = compose(path, ["train.seed=3"])
    assert problems == []
    assert tree.plain() == {"train": {"seed": 3, "optim": "sgd", "bf16": False}, "list": [3], "kept": "yes"}
    assert {dotted(at): str(node.origin) for at, node in tree.leaves()} == {
        "train.seed": "command line: train.seed=3",
        "train.optim": "bases/low.yaml:1",
        "train.bf16": "r.yaml:2",
        "list.0": "r.yaml:3",
        "kept": "bases/low.yaml:3",
    }


@pytest.mark.parametrize(
    ("base", "problem"),
    [
        ("../r.yaml", "goes in a circle: r.yaml -> bases/one.yaml -> r.yaml. Remove one of these links."),
        (
            "gone.yaml",
            "bases/gone.yaml: there is no such file. The chain: r.yaml -> bases/one.yaml -> bases/gone.yaml. Check the "
            "path.",
        ),
    ],
)
def test_a_circle_and_a_missing_base_print_their_chain(write, base, problem):
    write(f"a: 1\nextends: {base}\n", "bases/one.yaml")
    assert refused(write("extends: bases/one.yaml\n")) == [f"bases/one.yaml:2: extends: {problem}"]


def test_a_base_may_be_a_shipped_name(write):
    tree, _ = compose(write("extends: [bases/sft, quickstart/qlora]\nname: mine\n", "deep/r.yaml"))
    sft, qlora = (compose(shipped_root() / f"{name}.yaml")[0] for name in ("bases/sft", "quickstart/qlora"))
    assert tree.plain() == merge(merge(sft, qlora), tree).plain()
    assert tree.plain()["name"] == "mine"
    (origin,) = {node.origin.source for at, node in tree.leaves() if dotted(at) == "model.id"}
    assert origin == str(shipped_root() / "quickstart/qlora.yaml")


def test_extends_takes_a_file_before_a_shipped_name_and_no_folder(write):
    write("a: 1\n", "bases/qlora")
    assert compose(write("extends: bases/qlora\n"))[0].plain() == {"a": 1}
    write("a: 1\n", "bases/lora/inside.yaml")
    assert "a" not in compose(write("extends: bases/lora\n"))[0].plain()
    assert refused(write("extends: bases\n")) == [
        "r.yaml:1: extends: bases: is a folder. The chain: r.yaml -> bases. Name a recipe file in it."
    ]


def test_a_name_that_is_neither_file_nor_shipped(write):
    for name, remedy in (
        ("bases/qlra", "Did you mean bases/qlora?"),
        ("quickstrt/qlora", "Did you mean quickstart/qlora?"),
        ("xyzzy", "Check the path."),
        ("accelerate/x", "Check the path."),
    ):
        assert refused(write(f"a: 1\nextends: {name}\n", "deep/r.yaml")) == [
            f"deep/r.yaml:2: extends: {name} is neither a file (deep/{name}) nor the name of a shipped recipe or base."
            f" {remedy}"
        ]


def test_problems_of_several_bases_and_flags_come_together(write):
    write("a: [\n", "broken.yaml")
    assert refused(write("extends:\n  - broken.yaml\n  - gone.yaml\n  - 3\n"), "oops") == [
        "broken.yaml:2: is not valid YAML: while parsing a flow node, expected the node content, but found"
        " '<stream end>' (column 1).",
        "r.yaml:3: extends: gone.yaml: there is no such file. The chain: r.yaml -> gone.yaml. Check the path.",
        "r.yaml:4: extends: must be a recipe file, the name of a shipped one, or a list of these.",
        "command line: oops: is no override. Write key=value, for instance train.learning_rate=1e-4 or"
        " data.train.0.path=chats.jsonl.",
    ]


def test_what_is_no_mapping(write):
    for content, problem in (
        ("", "r.yaml: is empty; a recipe is a mapping of keys to values."),
        ("- 1\n", "r.yaml: holds a list; a recipe is a mapping of keys to values."),
        ("hello\n", "r.yaml: holds the text 'hello'; a recipe is a mapping of keys to values."),
    ):
        assert refused(write(content)) == [f"{problem} Start with, for instance, `name: my-run`."]


def test_a_file_that_is_missing_a_folder_binary_or_huge(write):
    path = write("a: 1")
    assert refused(path.with_name("gone.yaml")) == ["gone.yaml: there is no such file. Check the path."]
    assert refused(path.absolute().parent) == [f"{path.absolute().parent}: is a folder. Name a recipe file in it."]
    path.write_bytes(b"a: 1\nb: \xff\n")
    assert refused(path) == ["r.yaml:2: is not UTF-8 text. Save it as UTF-8."]
    path.write_bytes(b"#" * (256 * 1024 + 1))
    assert refused(path) == ["r.yaml: is larger than 256 KiB, so it is no recipe. Name a recipe file."]


def test_extends_in_a_flag_is_refused(write):
    _, problems = compose(write("a: 1"), ["extends=x.yaml"])
    assert [str(problem) for problem in problems] == [
        "command line: extends=x.yaml: extends: can only be written in a recipe file. Override the values themselves."
    ]


FORM = "Write key=value, for instance train.learning_rate=1e-4 or data.train.0.path=chats.jsonl."


def applied(data, *flags: str):
    tree, problems = apply_overrides(wrap(data, Origin("r.yaml", 1)), flags)
    return tree.plain(), [str(problem) for problem in problems]


A, L = {"a": {"b": 1}}, {"l": [{"p": "x"}]}


def test_one_flag():
    for flag, result in (
        ("a.b=2", {"a": {"b": 2}, **L}),
        ("a.c=1e-4", {"a": {"b": 1, "c": 1e-4}, **L}),
        ("a={c: no}", {"a": {"b": 1, "c": "no"}, **L}),
        ("a=null", {"a": None, **L}),
        ("a.b=", {"a": {"b": None}, **L}),
        ("a.b=x=y", {"a": {"b": "x=y"}, **L}),
        ("l.1.p=y", {**A, "l": [{"p": "x"}, {"p": "y"}]}),
        ("l=[1]", {**A, "l": [1]}),
        ("n.m.0=z", {**A, **L, "n": {"m": ["z"]}}),
    ):
        tree = wrap({**A, **L}, Origin("r.yaml", 1))
        found, problems = apply_overrides(tree, [flag])
        assert (found.plain(), problems) == (result, [])
        assert tree.plain() == {**A, **L}  # the tree below is not changed


@pytest.mark.parametrize("flag", ["", "a", "=1", "a..b=1", ".a=1", "a.=1", "a b=1", "--x"])
def test_a_flag_of_another_form(flag):
    where = f"command line: {flag}" if flag else "command line"
    assert applied({"a": 1}, flag) == ({"a": 1}, [f"{where}: is no override. {FORM}"])


def test_flags_that_do_not_fit_the_tree_are_all_told():
    assert applied({"a": 1, "l": [1, 2]}, "a.b=1", "l.3=1", "l.x=1", "l.-1=1", "c=[") == (
        {"a": 1, "l": [1, 2]},
        [
            f"command line: a.b=1: a: holds a single value, so nothing can be set below it. {FORM}",
            "command line: l.3=1: l: is a list of 2, which has no entry 3. Write an index from 0 to 2 (2 appends).",
            "command line: l.x=1: l: is a list of 2, which has no entry x. Write an index from 0 to 2 (2 appends).",
            "command line: l.-1=1: l: is a list of 2, which has no entry -1. Write an index from 0 to 2 (2 appends).",
            "command line: c=[: is not valid YAML: while parsing a flow node, expected the node content, but found "
            "'<stream end>' (column 2).",
        ],
    )
