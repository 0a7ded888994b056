"""Layouts of rows, their way to the canonical columns, and what can be one data set."""

from typing import get_args

import pytest
from made_data import answer, refused, system, user

from hf_efficient.data import formats
from hf_efficient.data.sources import Row
from hf_efficient.errors import DataError
from hf_efficient.recipe.schema import DataFormat

USER, ANSWER, SYSTEM, LATER = user(), answer(), system(), answer("b")
ROWS = {
    "messages": {"messages": [USER, ANSWER]},
    "chat_pair": {"prompt": [USER], "completion": [ANSWER]},
    "string_pair": {"prompt": "q", "completion": "a"},
    "text": {"text": "t"},
    "chat_preference": {"prompt": [USER], "chosen": [ANSWER], "rejected": [LATER]},
    "string_preference": {"prompt": "q", "chosen": "a", "rejected": "b"},
}


def converted(name: str, **value: object) -> dict:
    return formats.convert(Row("f:7", value), name)


def message(name: str, **value: object) -> str:
    return refused(converted, name, **value)


def test_the_recipe_knows_the_same_formats():
    assert set(get_args(DataFormat)) == set(formats.FORMATS)


@pytest.mark.parametrize(
    ("columns", "objective", "expected"),
    [
        (["messages", "prompt", "prompt_id"], "sft", "messages"),
        (["conversations", "id"], "sft", "sharegpt"),
        (["prompt", "completion", "text"], "sft", "prompt_completion"),
        (["instruction", "input", "output", "text"], "sft", "alpaca"),
        (["instruction", "output"], "sft", "alpaca"),
        (["text", "url"], "sft", "text"),
        (["prompt", "chosen", "rejected", "messages"], "dpo", "preference"),
        (["prompt", "chosen", "rejected", "messages"], "sft", "messages"),
        (["chosen", "rejected"], "dpo", "preference"),
    ],
)
def test_recognised_by_its_columns(columns, objective, expected):
    assert formats.recognise(dict.fromkeys(columns), objective, "f:1") == expected


def test_not_recognised_lists_what_was_found_and_what_is_known():
    assert refused(formats.recognise, {"question": "a", "answer": "b"}, "sft", "data.train.0 (f:1)") == (
        "data.train.0 (f:1): the layout of the rows is not recognised. Columns found: answer, question. Known "
        "formats: messages (messages); sharegpt (conversations); prompt_completion (prompt, completion); alpaca "
        "(instruction, output); text (text). Rename with `columns`, below the `path` of this source, e.g. "
        "columns: {prompt: question, completion: answer}."
    )
    named = refused(formats.recognise, {"id": 1, "q": "a", "a": "b"}, "sft", "f:1")
    assert named.endswith("e.g. columns: {prompt: q, completion: a}.")
    assert refused(formats.recognise, dict.fromkeys(["prompt", "chosen", "rejected"]), "sft", "f:1").endswith(
        " These look like preference pairs: they are for `objective: dpo`."
    )
    assert "Columns found: none. Known formats: preference (chosen, rejected)." in refused(
        formats.recognise, {}, "dpo", "f:1"
    )
    chat = refused(formats.recognise, {"id": 1, "turns": [USER, ANSWER]}, "sft", "f:1")
    assert chat.endswith("below the `path` of this source, e.g. columns: {messages: turns}.")


WITH_SYSTEM = {"messages": [SYSTEM, USER, ANSWER]}
ALPACA = {"instruction": "q", "output": "a"}
SHAREGPT = [{"from": who, "value": text} for who, text in (("system", "s"), ("human", "q"), ("gpt", "a"))]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("messages", {**ROWS["messages"], "id": 3}, ROWS["messages"]),
        ("messages", {"messages": [dict(reversed(SYSTEM.items())), {**USER, "name": "x"}, ANSWER]}, WITH_SYSTEM),
        ("sharegpt", {"conversations": SHAREGPT}, WITH_SYSTEM),
        ("sharegpt", {"conversations": [USER, ANSWER]}, ROWS["messages"]),
        ("prompt_completion", {"prompt": "p", "completion": ""}, {"prompt": "p", "completion": ""}),
        ("prompt_completion", ROWS["chat_pair"], ROWS["chat_pair"]),
        ("alpaca", {**ALPACA, "input": "1 2", "text": "unused"}, {**ROWS["chat_pair"], "prompt": [user("q\n\n1 2")]}),
        ("alpaca", {**ALPACA, "input": " ", "system": "s"}, {**ROWS["chat_pair"], "prompt": [SYSTEM, USER]}),
        ("alpaca", {**ALPACA, "input": None}, ROWS["chat_pair"]),
        ("text", {"text": "t", "url": "u"}, ROWS["text"]),
        ("preference", {**ROWS["string_preference"], "score": 1}, ROWS["string_preference"]),
        ("preference", ROWS["chat_preference"], ROWS["chat_preference"]),
        ("preference", {"prompt": "q", "chosen": [USER, ANSWER], "rejected": [USER, LATER]}, ROWS["chat_preference"]),
        ("preference", {"chosen": [USER, ANSWER], "rejected": [USER, LATER]}, ROWS["chat_preference"]),
    ],
)
def test_converted_to_the_canonical_columns(name, value, expected):
    assert converted(name, **value) == expected


NO_ANSWER = "has no assistant turn, so there is nothing to learn from it."
SHAPE = "the format messages expects messages: a list of {role, content}, at least one of them the assistant's"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("messages", {"text": "t"}, f"f:7: 'messages' is missing (columns found: text); {SHAPE}."),
        ("messages", {"messages": None}, f"f:7: 'messages' is null (columns found: messages); {SHAPE}."),
        ("messages", {"messages": "hi"}, "f:7: 'messages' must be a list of messages, found a string."),
        ("messages", {"messages": []}, "f:7: 'messages' is an empty conversation."),
        ("messages", {"messages": ["hi"]}, "f:7: 'messages[0]' must be an object with role and content, found a"),
        ("messages", {"messages": [USER, {"role": "assistant"}]}, "f:7: 'messages[1].content' is missing; a message"),
        ("messages", {"messages": [{"role": None, "content": "x"}]}, "f:7: 'messages[0].role' is null; a message has"),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, "f:7: 'messages[0].content' must be a string,"),
        ("messages", {"messages": [{"role": "human", "content": "x"}]}, "f:7: 'messages[0].role' is 'human', an"),
        ("sharegpt", {"conversations": [{"from": "robot", "value": "x"}]}, "f:7: 'conversations[0].from' is 'robot',"),
        ("sharegpt", {"conversations": [{"from": "human", "value": "x"}]}, "f:7: 'conversations' has no assistant"),
        ("messages", {"messages": SHAREGPT[:2]}, f"f:7: 'messages' {NO_ANSWER} Its messages have from and value: an"),
        ("messages", {"messages": [USER]}, "f:7: 'messages' has no assistant turn, so there is nothing to learn from"),
        ("messages", {"messages": [USER, {**ANSWER, "tool_calls": [{}]}]}, "f:7: 'messages[1]' has tool_calls, which"),
        ("prompt_completion", {"prompt": "p", "completion": [ANSWER]}, "f:7: 'prompt', 'completion' are partly"),
        ("prompt_completion", {"prompt": 1, "completion": "x"}, "f:7: 'prompt' must be a string, found a number."),
        ("prompt_completion", {"prompt": [USER], "completion": [USER]}, "f:7: 'completion' has no assistant turn, so"),
        ("alpaca", {"instruction": "q", "output": ["a"]}, "f:7: 'output' must be a string, found a list."),
        ("alpaca", {"instruction": "q", "output": "a", "input": True}, "f:7: 'input' must be a string, found a"),
        ("alpaca", {"instruction": "q", "input": ""}, "f:7: 'output' is missing (columns found: instruction, input);"),
        ("text", {"text": {"a": 1}}, "f:7: 'text' must be a string, found an object."),
        ("text", {"text": "café \ud83d"}, "f:7: 'text' holds half a surrogate pair (at character 5), which is no"),
        ("preference", {"chosen": "a", "rejected": "b"}, "f:7: 'prompt' is missing: the format preference expects"),
        ("preference", {"chosen": [USER, ANSWER], "rejected": [SYSTEM, ANSWER]}, "f:7: 'chosen' and 'rejected' have "),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_its_field(name, value, expected):
    assert message(name, **value).startswith(expected)


def test_columns_under_other_names():
    row = Row("f:1", {"question": "q", "answer": "a", "prompt": "shadowed", "id": 1})
    assert formats.rename(row, {"prompt": "question", "completion": "answer"}) == Row(
        "f:1", {"prompt": "q", "completion": "a", "id": 1}
    )
    assert formats.rename(Row("f:1", {"a": 1, "b": 2}), {"a": "b", "b": "a"}).value == {"a": 2, "b": 1}
    assert formats.rename(row, {}) is row
    assert refused(formats.check_columns, {"promt": "question"}, "prompt_completion", "data.train.1.columns") == (
        "data.train.1.columns: 'promt' is not a column of the format (completion, prompt). Did you mean prompt? Write "
        "the format's own name first: {prompt: question}."
    )
    formats.check_columns({"input": "context"}, "alpaca", "data.train.1.columns")
    formats.check_columns({"messages": "chat"}, "auto", "data.train.1")
    with pytest.raises(DataError):
        formats.check_columns({"messages": "chat"}, "alpaca", "data.train.1.columns")


def test_what_can_be_mixed():
    assert formats.common_kind({"a": "messages", "b": "messages"}) == "messages"
    assert formats.common_kind({"a": "messages", "b": "chat_pair", "c": "messages"}) == "chat_pair"
    assert formats.common_kind({"a": "chat_pair", "b": "messages"}) == "chat_pair"
    assert refused(formats.common_kind, {"data.train.0 (a.jsonl)": "messages", "data.train.1 (b.txt)": "text"}) == (
        "data.train.0 (a.jsonl) and data.train.1 (b.txt) cannot be mixed: the first has chats, the second plain text. "
        "Bring them into one layout."
    )
    assert refused(formats.common_kind, {"a": "chat_pair", "b": "string_pair"}) == (
        "a and b cannot be mixed: the first has prompt and completion as messages, the second prompt and completion "
        "as strings. Bring them into one layout."
    )


def test_a_row_in_another_kind():
    chat = {"messages": [SYSTEM, USER, ANSWER, USER, LATER, USER]}
    assert formats.recast(chat, "chat_pair", "f:1") == {"prompt": [SYSTEM, USER, ANSWER, USER], "completion": [LATER]}
    assert formats.recast(ROWS["chat_pair"], "messages", "f:1") == ROWS["messages"]
    assert refused(formats.recast, ROWS["string_pair"], "chat_pair", "f:9") == (
        "f:9: this row has prompt and completion as strings, the rows before it have prompt and completion as "
        "messages; use one layout."
    )


def test_a_system_message_is_put_first_where_there_is_none():
    assert formats.add_system({"messages": [USER, ANSWER]}, "s") == {"messages": [SYSTEM, USER, ANSWER]}
    own = {"messages": [system("own"), USER, ANSWER]}
    assert formats.add_system(own, "s") is own
    assert formats.add_system(ROWS["chat_pair"], "s") == {"prompt": [SYSTEM, USER], "completion": [ANSWER]}
    assert formats.add_system(ROWS["chat_preference"], "s")["prompt"] == [SYSTEM, USER]


def test_what_to_ask_and_what_to_expect():
    assert formats.question_and_answer(ROWS["messages"]) == {"prompt": [USER], "answer": "a"}
    question = [USER, ANSWER, USER]
    asked = formats.question_and_answer({"messages": [*question, LATER, USER]})
    assert asked == {"prompt": question, "answer": "b"}
    assert formats.question_and_answer(ROWS["chat_pair"]) == {"prompt": [USER], "answer": "a"}
    assert formats.question_and_answer(ROWS["string_pair"]) == {"prompt": "q", "answer": "a"}
    assert formats.question_and_answer(ROWS["text"]) is None
    assert formats.question_and_answer({"messages": [ANSWER, USER]}) is None
