from __future__ import annotations

import pytest

from hf_efficient.recipe.files import apply_overrides
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import wrap

FORM = "Write key=value, for instance train.learning_rate=1e-4 or data.train.0.path=chats.jsonl."


def apply(data, *flags: str):
    tree, problems = apply_overrides(wrap(data, Origin("r.yaml", 1)), flags)
    return tree.plain(), [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("flag", "result"),
    [
        ("a.b=2", {"a": {"b": 2}, "l": [{"p": "x"}]}),
        ("a.c=1e-4", {"a": {"b": 1, "c": 1e-4}, "l": [{"p": "x"}]}),
        ("a={c: no}", {"a": {"b": 1, "c": "no"}, "l": [{"p": "x"}]}),
        ("a=null", {"a": None, "l": [{"p": "x"}]}),
        ("a.b=", {"a": {"b": None}, "l": [{"p": "x"}]}),
        ("a.b=x=y", {"a": {"b": "x=y"}, "l": [{"p": "x"}]}),
        ("l.0.p=y", {"a": {"b": 1}, "l": [{"p": "y"}]}),
        ("l.1.p=y", {"a": {"b": 1}, "l": [{"p": "x"}, {"p": "y"}]}),
        ("l=[1]", {"a": {"b": 1}, "l": [1]}),
        ("n.m.0=z", {"a": {"b": 1}, "l": [{"p": "x"}], "n": {"m": ["z"]}}),
    ],
)
def test_one_flag(flag, result):
    assert apply({"a": {"b": 1}, "l": [{"p": "x"}]}, flag) == (result, [])


def test_the_later_flag_wins():
    assert apply({}, "a=1", "a=2") == ({"a": 2}, [])


def test_the_tree_below_is_not_changed():
    tree = wrap({"a": {"b": 1}, "l": [1]}, Origin("r.yaml", 1))
    apply_overrides(tree, ["a.b=2", "l.0=2", "l.1=3"])
    assert tree.plain() == {"a": {"b": 1}, "l": [1]}


@pytest.mark.parametrize("flag", ["", "a", "=1", "a..b=1", ".a=1", "a.=1", "a b=1", "--x"])
def test_a_flag_of_another_form(flag):
    where = f"command line: {flag}" if flag else "command line"
    assert apply({"a": 1}, flag) == ({"a": 1}, [f"{where}: is no override. {FORM}"])


def test_flags_that_do_not_fit_the_tree_are_all_told():
    assert apply({"a": 1, "l": [1, 2]}, "a.b=1", "l.3=1", "l.x=1", "l.-1=1", "c=[") == (
        {"a": 1, "l": [1, 2]},
        [
            f"command line: a.b=1: a: holds a single value, so nothing can be set below it. {FORM}",
            "command line: l.3=1: l: is a list of 2, which has no entry 3. Write an index from 0 to 2 (2 appends).",
            "command line: l.x=1: l: is a list of 2, which has no entry x. Write an index from 0 to 2 (2 appends).",
            "command line: l.-1=1: l: is a list of 2, which has no entry -1. Write an index from 0 to 2 (2 appends).",
            "command line: c=[: is not valid YAML: while parsing a flow node, expected the node content,"
            " but found"
            " '<stream end>' (column 2).",
        ],
    )


def test_a_key_deeper_than_any_recipe():
    deep = ".".join("a" * 40)
    assert apply({}, f"{deep}=1") == (
        {},
        [f"command line: {deep}=1: is nested more than 32 levels deep."],
    )
