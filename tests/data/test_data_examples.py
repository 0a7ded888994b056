"""From sources to two data sets: which examples, how often, on which side."""

import pytest
from made_data import answer, jsonl, refused, system, user

from hf_efficient.data.examples import RawData, build_raw, held_out, open_sources, weighted
from hf_efficient.recipe.schema import DataSection


def raw(train: list[dict], **settings: object) -> RawData:
    options = {name: settings.pop(name) for name in ("objective", "completion_only", "text_column") if name in settings}
    section = DataSection.model_validate({"train": train, **settings})
    return build_raw(section, open_sources(section), 0, **options)


def message(*args, **settings):
    return refused(raw, *args, **settings)


def chat(question: str, reply: str = "a") -> dict:
    return {"messages": [user(question), answer(reply)]}


def texts(count: int, prefix: str = "t") -> list[dict]:
    return [{"text": f"{prefix}{i}"} for i in range(count)]


def test_chats_pairs_and_alpaca_become_one_data_set_of_pairs(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", [chat("q1", "a1")])
    second = jsonl(tmp_path / "b.jsonl", [{"instruction": "q2", "output": "a2"}])
    data = raw([{"path": first}, {"path": second}], system="be brief")
    assert data.kind == "chat_pair"
    assert data.train["prompt"][:] == [[system("be brief"), user("q1")], [system("be brief"), user("q2")]]
    assert data.train["completion"][:] == [[answer("a1")], [answer("a2")]]


def test_a_row_or_a_weight_that_does_not_fit(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", texts(1))
    assert message([{"path": path}], completion_only=True) == (
        f"train.completion_only_loss: data.train.0 ({path}) is plain text, which has no completion. Leave it out, or "
        f"use a layout with prompt and completion."
    )
    path = jsonl(tmp_path / "a.jsonl", [chat("q"), {"text": "t"}])
    assert message([{"path": path}]) == (
        f"{path}:2: 'messages' is missing (columns found: text); the format messages expects messages: a list of "
        f"{{role, content}}, at least one of them the assistant's."
    )
    empty = {"instruction": "i", "prompt": chat("q")["messages"], "completion": []}
    pairs = jsonl(tmp_path / "b.jsonl", [{"prompt": "p", "completion": "c"}, empty])
    assert message([{"path": pairs}]) == f"{pairs}:2: 'completion' is an empty conversation."


def test_evaluation_chats_follow_the_training_data(tmp_path):
    pairs = jsonl(tmp_path / "a.jsonl", [{"instruction": "q2", "output": "a2"}])
    chats = jsonl(tmp_path / "b.jsonl", [chat("q1", "a1")])
    data = raw([{"path": pairs}], eval=[{"path": chats}])
    assert data.eval["completion"][:] == [[answer("a1")]]
    data = raw([{"path": chats}], eval=[{"path": pairs}])
    assert data.eval["messages"][:] == [chat("q2", "a2")["messages"]]


def test_weights_repeat_and_thin_out(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", texts(4, "a"))
    second = jsonl(tmp_path / "b.jsonl", texts(4, "b"))
    rows = raw([{"path": first, "weight": 2}, {"path": second, "weight": 0.5}]).train["text"][:]
    assert rows[:8] == ["a0", "a1", "a2", "a3"] * 2
    assert len(rows) == 10
    assert set(rows[8:]) < {"b0", "b1", "b2", "b3"}


def test_the_held_out_share_is_taken_before_the_weights(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", texts(10, "a"))
    second = jsonl(tmp_path / "b.jsonl", texts(10, "b"))
    data = raw([{"path": first, "weight": 3}, {"path": second}], eval_fraction=0.25)
    train, evaluation = data.train["text"][:], data.eval["text"][:]
    assert len(evaluation) == 5
    assert set(train) & set(evaluation) == set()
    assert set(train) | set(evaluation) == {f"{side}{i}" for side in "ab" for i in range(10)}
    assert len(train) == 3 * sum(name[0] == "a" for name in set(train)) + sum(name[0] == "b" for name in set(train))


def test_a_column_by_another_name(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"question": "q", "answer": "a"}])
    data = raw([{"path": path, "columns": {"prompt": "question", "completion": "answer"}}])
    assert (data.kind, data.train["prompt"][:], data.train["completion"][:]) == ("string_pair", ["q"], ["a"])
    path = jsonl(tmp_path / "a.jsonl", [{"content": "x"}])
    assert raw([{"path": path}], text_column="content").train["text"][:] == ["x"]
    chats = jsonl(tmp_path / "b.jsonl", [chat("q")])
    assert raw([{"path": chats}], text_column="content").kind == "messages"


def test_preference_pairs_for_dpo(tmp_path):
    pair = {"prompt": "p", "chosen": "c", "rejected": "r"}
    path = jsonl(tmp_path / "a.jsonl", [pair])
    assert raw([{"path": path}], objective="dpo").train[0] == {**pair, "where": f"{path}:1"}
    assert message([{"path": path, "format": "preference"}]) == (
        "data.train.0.format: preference does not go with `objective: sft`, which reads messages, sharegpt, "
        "prompt_completion, alpaca, text."
    )
    assert message([{"path": path, "format": "text"}], objective="dpo") == (
        "data.train.0.format: text does not go with `objective: dpo`, which reads preference."
    )


def test_more_rows_than_one_chunk(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", texts(10_001))
    rows = raw([{"path": path}]).train
    assert rows["text"][:] == [f"t{i}" for i in range(10_001)]
    assert rows[10_000]["where"] == f"{path}:10001"


def test_sources_that_contribute_little_are_told(tmp_path):
    first = jsonl(tmp_path / "a.jsonl", texts(24, "a"))
    second = jsonl(tmp_path / "b.jsonl", texts(10, "b"))
    assert raw([{"path": first}, {"path": second}]).small_sources is None
    assert raw([{"path": second}, {"path": first, "weight": 0.0001}]).small_sources == {"data.train.1": 1}
    assert raw([{"path": first, "weight": 0.375}, {"path": second}]).small_sources == {"data.train.0": 9}
    data = raw([{"path": first}, {"path": second}], max_train_examples=17)
    assert data.small_sources == {"data.train.1": sum(text[0] == "b" for text in data.train["text"][:])}


def test_weights_and_draws():
    assert weighted([3, 5, 7], 1.0, 0) == [3, 5, 7]
    assert weighted([3, 5, 7], 2.0, 0) == [3, 5, 7, 3, 5, 7]
    half = weighted(range(10), 0.5, 0)
    assert len(half) == 5
    assert half == sorted(set(half))
    assert weighted(range(10), 1.7, 0)[:10] == list(range(10))
    assert len(weighted(range(10), 1.7, 0)) == 17
    more = weighted(range(10), 2.3, 0)
    assert more[:20] == [*range(10), *range(10)]
    assert len(more) == 23
    assert len(set(more[20:])) == 3
    assert weighted(range(1000), 0.1, "0") == weighted(range(1000), 0.1, "0")
    assert weighted(range(1000), 0.1, "0:a") != weighted(range(1000), 0.1, "0:b")


@pytest.mark.parametrize(("count", "fraction", "evaluated"), [(10, 0.2, 2), (10, 0.01, 1), (10, 0.999, 9)])
def test_held_out_splits_without_overlap(count, fraction, evaluated):
    train, evaluation = held_out(count, fraction, 0)
    assert len(evaluation) == evaluated
    assert sorted(train + evaluation) == list(range(count))
    assert (train, evaluation) == (sorted(train), sorted(evaluation))


def test_what_cannot_be_split():
    assert refused(held_out, 1, 0.1, 0) == (
        "data.eval_fraction: 0.1 of 1 example cannot be held out: both sides need at least one. Name a data.eval "
        "source, or give more data."
    )
