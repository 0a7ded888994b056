from __future__ import annotations

import pytest

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.files import compose, shipped_root
from hf_efficient.recipe.tree import dotted, merge


def said(path, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        compose(path, overrides)
    return [str(problem) for problem in caught.value.problems]


def test_layers_are_merged_and_lists_replaced(write):
    write("train: {seed: 1, optim: sgd}\nlist: [1, 2]\nkept: yes\n", "bases/low.yaml")
    write("extends: low.yaml\ntrain: {seed: 2, bf16: true}\n", "bases/high.yaml")
    path = write("extends: bases/high.yaml\ntrain: {bf16: false}\nlist: [3]\n")
    tree, problems = compose(path, ["train.seed=3"])
    assert problems == []
    assert tree.plain() == {
        "train": {"seed": 3, "optim": "sgd", "bf16": False},
        "list": [3],
        "kept": "yes",
    }
    assert {dotted(at): str(node.origin) for at, node in tree.leaves()} == {
        "train.seed": "command line: train.seed=3",
        "train.optim": "bases/low.yaml:1",
        "train.bf16": "r.yaml:2",
        "list.0": "r.yaml:3",
        "kept": "bases/low.yaml:3",
    }


def test_of_several_bases_the_later_lies_above(write):
    write("a: {x: 1, y: 1}\n", "one.yaml")
    write("a: {y: 2, z: 2}\n", "two.yaml")
    path = write("extends: [one.yaml, two.yaml]\na: {z: 3}\n")
    assert compose(path)[0].plain() == {"a": {"x": 1, "y": 2, "z": 3}}


def test_a_null_between_takes_back_what_lies_below(write):
    write("a: {x: 1}\n", "one.yaml")
    write("a: null\n", "two.yaml")
    path = write("extends: [one.yaml, two.yaml]\na: {y: 2}\n")
    assert compose(path)[0].plain() == {"a": {"y": 2}}


def test_two_ways_to_the_same_base_are_no_circle(write):
    write("a: 1\n", "base.yaml")
    write("extends: base.yaml\n", "one.yaml")
    write("extends: base.yaml\n", "two.yaml")
    assert compose(write("extends: [one.yaml, two.yaml]\n"))[0].plain() == {"a": 1}


def test_a_circle_prints_its_chain(write):
    write("a: 1\nextends: ../r.yaml\n", "bases/one.yaml")
    assert said(write("extends: bases/one.yaml\n")) == [
        "bases/one.yaml:2: extends: goes in a circle: r.yaml -> bases/one.yaml -> r.yaml. Remove one of these links."
    ]


def test_a_missing_base_prints_the_chain(write):
    write("# first\nextends: gone.yaml\n", "bases/one.yaml")
    assert said(write("extends: bases/one.yaml\n")) == [
        "bases/one.yaml:2: extends: bases/gone.yaml: there is no such file. The chain:"
        " r.yaml -> bases/one.yaml -> bases/gone.yaml. Check the path."
    ]


def test_a_base_may_be_a_shipped_name(write):
    tree, _ = compose(write("extends: [bases/chat, quickstart/qlora]\nname: mine\n", "deep/r.yaml"))
    chat, qlora = (compose(shipped_root() / f"{name}.yaml")[0] for name in ("bases/chat", "quickstart/qlora"))
    assert tree.plain() == merge(merge(chat, qlora), tree).plain()
    assert tree.plain()["name"] == "mine"
    (origin,) = {node.origin.source for at, node in tree.leaves() if dotted(at) == "model.id"}
    assert origin == str(shipped_root() / "quickstart/qlora.yaml")


def test_a_file_goes_before_a_shipped_name_and_a_folder_does_not(write):
    write("a: 1\n", "bases/qlora")
    assert compose(write("extends: bases/qlora\n"))[0].plain() == {"a": 1}
    write("a: 1\n", "bases/lora/inside.yaml")
    assert "a" not in compose(write("extends: bases/lora\n"))[0].plain()
    assert said(write("extends: bases\n")) == [
        "r.yaml:1: extends: bases: is a folder. The chain: r.yaml -> bases. Name a recipe file in it."
    ]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("bases/qlra", "Did you mean bases/qlora?"),
        ("quickstrt/qlora", "Did you mean quickstart/qlora?"),
        ("xyzzy", "Check the path."),
        ("accelerate/x", "Check the path."),
    ],
)
def test_a_name_that_is_neither_file_nor_shipped(write, name, remedy):
    assert said(write(f"a: 1\nextends: {name}\n", "deep/r.yaml")) == [
        f"deep/r.yaml:2: extends: {name} is neither a file (deep/{name}) nor the name of a shipped recipe or base."
        f" {remedy}"
    ]


def test_problems_of_several_bases_and_flags_come_together(write):
    write("a: [\n", "broken.yaml")
    assert said(write("extends:\n  - broken.yaml\n  - gone.yaml\n  - 3\n"), "oops") == [
        "broken.yaml:2: is not valid YAML: while parsing a flow node, expected the node content, but found"
        " '<stream end>' (column 1).",
        "r.yaml:3: extends: gone.yaml: there is no such file. The chain: r.yaml -> gone.yaml. Check the path.",
        "r.yaml:4: extends: must be a recipe file, the name of a shipped one, or a list of these.",
        "command line: oops: is no override. Write key=value, for instance train.learning_rate=1e-4 or"
        " data.train.0.path=chats.jsonl.",
    ]


def test_bases_that_multiply_are_stopped(write):
    write("a: 1\n", "b0.yaml")
    for i in range(1, 12):
        write(f"extends: [b{i - 1}.yaml, b{i - 1}.yaml]\n", f"b{i}.yaml")
    problems = said(write("extends: b11.yaml\n"))
    assert len(problems) == 1
    assert problems[0].endswith("extends: leads to more than 64 files. Extend fewer files.")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "r.yaml: is empty; a recipe is a mapping of keys to values."),
        ("- 1\n", "r.yaml: holds a list; a recipe is a mapping of keys to values."),
        ("hello\n", "r.yaml: holds the text 'hello'; a recipe is a mapping of keys to values."),
    ],
)
def test_what_is_no_mapping(write, content, problem):
    assert said(write(content)) == [f"{problem} Start with, for instance, `name: my-run`."]


def test_a_file_that_is_missing_a_folder_binary_or_huge(write):
    path = write("a: 1")
    assert said(path.with_name("gone.yaml")) == ["gone.yaml: there is no such file. Check the path."]
    assert said(path.absolute().parent) == [f"{path.absolute().parent}: is a folder. Name a recipe file in it."]
    path.write_bytes(b"a: 1\nb: \xff\n")
    assert said(path) == ["r.yaml:2: is not UTF-8 text. Save it as UTF-8."]
    path.write_bytes(b"#" * (256 * 1024 + 1))
    assert said(path) == ["r.yaml: is larger than 256 KiB, so it is no recipe. Name a recipe file."]


def test_a_byte_order_mark_is_no_part_of_the_first_key(write):
    path = write()
    path.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert compose(path)[0].plain() == {"a": 1}


def test_extends_in_a_flag_is_refused(write):
    _, problems = compose(write("a: 1"), ["extends=x.yaml"])
    assert [str(problem) for problem in problems] == [
        "command line: extends=x.yaml: extends: can only be written in a recipe file. Override the values themselves."
    ]
