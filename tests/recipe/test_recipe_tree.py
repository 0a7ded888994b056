"""YAML in and out: values with their lines, and what is refused."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hf_efficient.errors import RecipeError
from hf_efficient.recipe.load import dump_yaml
from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import dotted, parse_yaml


def parse(text: str):
    return parse_yaml(text, Origin("r.yaml"))


def said(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    return [str(problem) for problem in caught.value.problems]


# fmt: off
NUMBERS = {
    "2e-4": 2e-4, "2.0e-4": 2e-4, "1E5": 1e5, ".5": 0.5, "5.": 5.0, "-3": -3, "+3": 3, "010": 10, "0o17": 15,
    "0x1F": 31, ".inf": math.inf, "-.INF": -math.inf, "true": True, "False": False, "null": None, "~": None, "": None,
}
# fmt: on
PLAIN = {text: text for text in ["1_000", "12:30", "2024-01-02", "no", "on", "off", "y", "1e", "0b1", ".", "="]}
QUOTED = {"'3'": "3", '"true"': "true", "''": ""}


@pytest.mark.parametrize(("text", "value"), {**NUMBERS, **PLAIN, **QUOTED}.items())
def test_scalars_are_read_as_yaml_1_2(text, value):
    found = parse(f"a: {text}").plain()["a"]
    assert (type(found), found) == (type(value), value)


def test_block_text_is_text_even_where_it_looks_like_a_number():
    assert parse("a: |\n  12\nb: >-\n  3\n").plain() == {"a": "12\n", "b": "3"}


def test_every_value_knows_its_line():
    text = "# a comment\nmodel:\n  id: m\n"
    text += "data:\n  train:\n    - path: a\n      weight: 2\n    - {path: b}\nempty: []\n"
    lines = {dotted(path): node.origin.line for path, node in parse(text).leaves()}
    train = {"data.train.0.path": 6, "data.train.0.weight": 7, "data.train.1.path": 8}
    assert lines == {"model.id": 3, **train, "empty": 9}


def test_tags_duplicates_and_keys_are_all_reported():
    text = "a: !!python/object/apply:os.system ['x']\nb: !foo 1\nc: !!str 1\nd: 1\nd: 2\n"
    text += "3: x\n[e]: 1\n<<: {f: 1}\n!g h: 1"
    objects = "a recipe is plain data and builds no objects. Remove the tag."
    assert said(text) == [
        f"r.yaml:1: a: carries the tag !!python/object/apply:os.system; {objects}",
        f"r.yaml:2: b: carries the tag !foo; {objects}",
        f"r.yaml:3: c: carries the tag !!str; {objects}",
        "r.yaml:5: d: is written twice, first in line 4. Keep one of the two.",
        "r.yaml:6: has the key the number 3, which is not text. Keys are text.",
        "r.yaml:7: has a key that is no plain text. Keys are text.",
        "r.yaml:8: uses a merge key (<<). Write the keys out, or share them with `extends`.",
        "r.yaml:9: has a key that is no plain text. Keys are text.",
    ]


def test_exploding_aliases_stop_at_20000_values():
    levels = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 10)]
    (problem,) = said("\n".join(levels))
    assert problem.endswith("holds more than 20000 values once its aliases are written out. Write plain values.")


def test_values_without_end():
    for text in ("a: &x\n  - *x\n", "[" * 5000 + "]" * 5000):
        (problem,) = said(text)
        assert problem.startswith("r.yaml: cannot be read as YAML: maximum recursion depth exceeded")


def test_what_cannot_be_read_is_told_with_its_line():
    for text, problem in (
        ("a: 1\nb:\n\t- 1", "r.yaml:3: is not valid YAML: while scanning for the next token, found character '\\t'"),
        ("a: 1\nb: c: d", "r.yaml:2: is not valid YAML: mapping values are not allowed here (column 5). Quote the"),
        ("a: 1\n---\nb: 1", "r.yaml:2: is not valid YAML: expected a single document in the stream, but found"),
        ("a: *x", "r.yaml:1: is not valid YAML: found undefined alias 'x' (column 4)."),
        ("a: 1\nb: \x07", "r.yaml: cannot be read as YAML: unacceptable character #x0007"),
        ('a: "\\UFFFFFFFF"', "r.yaml: cannot be read as YAML: "),
        ('a: "\\U00110000"', "r.yaml: cannot be read as YAML: "),
        (f"%YAML {'9' * 5000}.1\n---\na: 1", "r.yaml: cannot be read as YAML: "),
        ('a: 1\nb: "\\ud800"', "r.yaml:2: b: holds the character U+D800, which is no text. Remove it, or write the"),
        (f"a: {'9' * 5000}", "r.yaml: cannot be read as YAML: Exceeds the limit"),
    ):
        (found,) = said(text)
        assert found.startswith(problem)


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\t\n\r\x85"), max_size=12)
AWKWARD = st.sampled_from(
    ["no", "2e-4", "1e5", "010", "0o7", "12:30", "~", "", "null", "true", "=", "<<", "9" * 120, ".inf"]
)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | TEXT | AWKWARD
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | AWKWARD, inner, max_size=3)
)


def test_keys_keep_their_order_and_text_stays_text():
    data = {"name": "no", "b": [{"rate": 1e-5, "text": "2e-4"}], "a": None, "empty": {}}
    assert dump_yaml(data) == "name: 'no'\nb:\n- rate: 1.0e-05\n  text: '2e-4'\na: null\nempty: {}\n"


@given(st.dictionaries(TEXT | AWKWARD, DATA, max_size=4).filter(lambda data: data != {}))
def test_what_is_dumped_reads_back(data):
    text = dump_yaml(data)
    assert parse_yaml(text, Origin("r.yaml")).plain() == data
    assert yaml.safe_load(text) == data
