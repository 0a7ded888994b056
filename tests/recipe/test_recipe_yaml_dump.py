from __future__ import annotations

import math

import yaml
from hypothesis import given
from hypothesis import strategies as st

from hf_efficient.recipe.schema import Origin
from hf_efficient.recipe.tree import parse_yaml
from hf_efficient.recipe.writing import dump_yaml

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)
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


def test_infinity_reads_back():
    assert parse_yaml(dump_yaml({"a": math.inf}), Origin("r.yaml")).plain() == {"a": math.inf}
