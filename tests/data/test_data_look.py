"""What a recipe's data look like to its model, and what a data file holds."""

import pytest
from made_data import answer, arguments, jsonl, recipe, refused, user
from trl import DPOConfig

from hf_efficient.data.build import build_sft_data
from hf_efficient.data.examples import Layout, layout_of
from hf_efficient.data.look import Packing, SourceCount, Span, look_at


def chat(question: str, reply: str) -> dict:
    return {"messages": [user(question), answer(reply)]}


@pytest.fixture
def look(tmp_path, tokenizer):
    def looked(rows, show=3, of=None, objective="sft", data=None, **settings):
        path = jsonl(tmp_path / "a.jsonl", rows)
        made = recipe([{"path": path}], objective, cache_dir=str(tmp_path / "cache"), **(data or {}))
        return look_at(made, tokenizer, arguments(*([of] if of else []), **settings), show)

    return looked


def test_targets_are_the_spans_that_the_loss_covers(look):
    whole = look([chat("q", "a")], completion_only_loss=True)
    prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    assert whole.shown[0].spans == (Span(prompt, False), Span("a<|im_end|>\n", True))
    assert (whole.tokens, whole.target_tokens) == (whole.lengths["max"], 3)
    all_of_it = look([{"text": "ab"}])
    assert all_of_it.shown[0].spans == (Span("a", False), Span("b<|im_end|>", True))
    assert all_of_it.target_share == pytest.approx(2 / 3)


def test_counts_are_those_of_a_run(chats_jsonl, tmp_path, tokenizer):
    made = recipe(chats_jsonl, cache_dir=str(tmp_path / "cache"), eval_fraction=0.25)
    for settings in ({"max_length": 64}, {"max_length": 64, "packing": True}, {"max_length": None}):
        args = arguments(**settings)
        found, run = look_at(made, tokenizer, args, 1), build_sft_data(made, tokenizer, args)
        stats = run.stats
        assert (found.examples, found.tokens, found.target_tokens) == (
            (stats.examples, stats.tokens_total, stats.target_tokens)
        )
        assert (found.truncated, found.evaluation_examples) == (stats.truncated, len(run.eval_examples) and 6)
        assert (found.packing is None) == (stats.packs is None)


def test_truncation_and_packing_by_hand(look):
    rows = [{"text": "x" * size} for size in (3, 5, 9)]  # and an end-of-sequence token each: 4, 6, 10
    cut = look(rows, max_length=6)
    assert (cut.truncated, cut.truncated_tokens, cut.tokens) == (1, 4, 16)
    assert cut.lengths == {"p50": 6, "p95": 10, "max": 10}
    assert [one.cut_tokens for one in cut.shown] == [0, 0, 4]
    packed = look(rows, max_length=10, packing=True)
    assert packed.packing == Packing(rows=2, examples_per_row=1.5, fill_rate=1.0)
    dropped = look(rows, max_length=6, data={"overlong": "drop"})
    assert (dropped.dropped, dropped.truncated, dropped.examples) == (1, 0, 2)
    assert (dropped.shown[2].cut_tokens, dropped.shown[2].spans) == (10, ())


def test_sources_are_counted_and_shown_in_turn(tmp_path, tokenizer):
    paths = [jsonl(tmp_path / f"{name}.jsonl", [{"text": name * 3}] * size) for name, size in (("a", 4), ("b", 2))]
    made = recipe([{"path": path} for path in paths], cache_dir=str(tmp_path / "cache"))
    found = look_at(made, tokenizer, arguments(max_length=8), 3)
    assert found.sources == (SourceCount("data.train.0", paths[0], 4, 16), SourceCount("data.train.1", paths[1], 2, 8))
    assert [one.where for one in found.shown] == [f"{paths[0]}:1", f"{paths[1]}:1", f"{paths[0]}:2"]


def test_preference_pairs(look):
    pair = {"prompt": "pp", "chosen": "ccc", "rejected": "r"}
    found = look([pair, {**pair, "prompt": "p" * 9}], of=DPOConfig, objective="dpo", max_length=5, show=1)
    assert [(one.part, one.cut_tokens) for one in found.shown] == [("chosen", 1), ("rejected", 0)]
    assert found.shown[1].spans == (Span("pp", False), Span("r<|im_end|>", True))
    assert (found.examples, found.dropped, found.tokens, found.target_tokens) == (1, 1, 5 + 4, 3 + 2)


RENAMED = Layout("prompt_completion", "sft", 2, {"prompt": "query", "completion": "answer"})


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        (chat("q", "a"), Layout("messages", "sft", 2)),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, Layout("preference", "dpo", 2)),
        ({"prompt": "q", "answer": "a"}, Layout("prompt_completion", "sft", 2, {"completion": "answer"})),
        ({"query": "q", "completion": "a", "answer": "b"}, RENAMED),
    ],
)
def test_the_layout_of_a_file(tmp_path, row, layout):
    assert layout_of(jsonl(tmp_path / "a.jsonl", [row, row]), "--data") == layout


def test_a_layout_that_is_none(tmp_path):
    assert layout_of("owner/name", "--data") is None
    assert refused(layout_of, "nowhere.jsonl", "--data").startswith("--data: no such file: nowhere.jsonl.")
    wrong = jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"text": 3}])
    assert refused(layout_of, wrong, "--data") == f"{wrong}:2: 'text' must be a string, found a number."
    unknown = jsonl(tmp_path / "b.jsonl", [{"foo": "a", "bar": "b"}])
    told = refused(layout_of, unknown, "--data")
    assert told.startswith(f"--data ({unknown}:1): the layout of the rows is not recognised. Columns found: bar, foo.")
    assert told.endswith("Write, for instance, --columns prompt=foo,completion=bar.")
    named = {"prompt": "foo", "completion": "bar"}
    assert layout_of(unknown, "--data", named) == Layout("prompt_completion", "sft", 1, named)
    assert refused(layout_of, unknown, "--data", {"promt": "foo"}).startswith("--columns: 'promt' is not a column")
