"""The recipe of the table of peers, and the rungs of the ladder: each is one that `hf-efficient train` takes."""

import json

import ladder
import peers
import pytest

from hf_efficient.recipe.load import change_recipe, load_recipe
from hf_efficient.trials.arms import named_arms


@pytest.fixture
def recipe(tmp_path, tiny_llama_dir):
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"question": "1 + 1?", "answer": "2"}) + "\n")
    (row,) = peers.chats(chats)
    assert [one["content"] for one in row["messages"]] == ["1 + 1?", "2"]
    asked = peers.parser_of("").parse_args(["--data", str(chats), "--model", str(tiny_llama_dir), "--qlora"])
    path = tmp_path / "peer.yaml"
    path.write_text(json.dumps(peers.settings(asked, chats)))
    return load_recipe(path)


def test_the_default_arms_are_known(recipe):
    assert recipe.adapter.method == "qlora"
    assert named_arms(peers.DEFAULT.split(","), "--only")[0].name == "trl"


@pytest.mark.parametrize("rung", ladder.RUNGS)
def test_each_rung_is_a_recipe(recipe, rung):
    changed = change_recipe(recipe, ladder.RUNGS[rung][1])
    assert changed.train["packing"] is not (rung == "padded" or rung.endswith("_alone"))
