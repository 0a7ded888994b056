from __future__ import annotations

import pytest

from hf_efficient.data.formats import add_system, common_kind, features_of, kind_of, question_and_answer, recast
from hf_efficient.errors import DataError

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
LATER = {"role": "assistant", "content": "b"}

ROWS = {
    "messages": {"messages": [USER, ANSWER]},
    "chat_pair": {"prompt": [USER], "completion": [ANSWER]},
    "string_pair": {"prompt": "q", "completion": "a"},
    "text": {"text": "t"},
    "chat_preference": {"prompt": [USER], "chosen": [ANSWER], "rejected": [LATER]},
    "string_preference": {"prompt": "q", "chosen": "a", "rejected": "b"},
}


@pytest.mark.parametrize("kind", ROWS)
def test_kind_and_columns_of_a_row(kind):
    assert kind_of(ROWS[kind]) == kind
    assert set(features_of(kind)) == {*ROWS[kind], "where"}
    assert recast(ROWS[kind], kind, "f:1") is ROWS[kind]


def test_chats_beside_pairs_become_pairs():
    assert common_kind({"a": "messages", "b": "messages"}) == "messages"
    assert common_kind({"a": "messages", "b": "chat_pair", "c": "messages"}) == "chat_pair"
    assert common_kind({"a": "chat_pair", "b": "messages"}) == "chat_pair"


def test_what_cannot_be_mixed_is_named_with_both_sources():
    with pytest.raises(DataError) as caught:
        common_kind({"data.train.0 (a.jsonl)": "messages", "data.train.1 (b.txt)": "text"})
    assert str(caught.value) == (
        "data.train.0 (a.jsonl) and data.train.1 (b.txt) cannot be mixed: the first has chats, the second plain text. "
        "Bring them into one layout."
    )
    with pytest.raises(DataError) as caught:
        common_kind({"a": "chat_pair", "b": "string_pair"})
    assert str(caught.value) == (
        "a and b cannot be mixed: the first has prompt and completion as messages, the second prompt and completion "
        "as strings. Bring them into one layout."
    )


def test_a_chat_is_cut_at_its_last_answer():
    chat = {"messages": [SYSTEM, USER, ANSWER, USER, LATER, USER]}
    assert recast(chat, "chat_pair", "f:1") == {"prompt": [SYSTEM, USER, ANSWER, USER], "completion": [LATER]}
    assert recast(ROWS["chat_pair"], "messages", "f:1") == ROWS["messages"]


def test_a_chat_without_a_question_cannot_be_cut():
    with pytest.raises(DataError) as caught:
        recast({"messages": [ANSWER, USER]}, "chat_pair", "f:9")
    assert str(caught.value) == ("f:9: 'messages' begins with its only assistant turn; there is no prompt before it.")


def test_a_row_of_another_kind_than_the_rest():
    with pytest.raises(DataError) as caught:
        recast(ROWS["string_pair"], "chat_pair", "f:9")
    assert str(caught.value) == (
        "f:9: this row has prompt and completion as strings, the rows before it have prompt and completion as "
        "messages; use one layout."
    )


def test_a_system_message_is_put_first_where_there_is_none():
    assert add_system({"messages": [USER, ANSWER]}, "s") == {"messages": [SYSTEM, USER, ANSWER]}
    own = {"messages": [{"role": "system", "content": "own"}, USER, ANSWER]}
    assert add_system(own, "s") is own
    assert add_system(ROWS["chat_pair"], "s") == {"prompt": [SYSTEM, USER], "completion": [ANSWER]}
    assert add_system(ROWS["chat_preference"], "s")["prompt"] == [SYSTEM, USER]


def test_what_to_ask_and_what_to_expect():
    assert question_and_answer(ROWS["messages"]) == {"prompt": [USER], "answer": "a"}
    assert question_and_answer({"messages": [USER, ANSWER, USER, LATER, USER]}) == {
        "prompt": [USER, ANSWER, USER],
        "answer": "b",
    }
    assert question_and_answer(ROWS["chat_pair"]) == {"prompt": [USER], "answer": "a"}
    assert question_and_answer(ROWS["string_pair"]) == {"prompt": "q", "answer": "a"}
    assert question_and_answer(ROWS["text"]) is None
    assert question_and_answer({"messages": [ANSWER, USER]}) is None
