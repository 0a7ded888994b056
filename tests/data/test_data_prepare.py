import copy
import re
from typing import Any

import datasets
import pytest
from made_data import answer, arguments, refused, user
from trl import SFTConfig, SFTTrainer

from hf_efficient.data.formats import features_of, kind_of
from hf_efficient.data.prepare import Prepared, build_collator, prepare
from hf_efficient.data.stats import DataStats
from hf_efficient.data.targets import Targets

MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}A:{% generation %}{{ message['content'] "
    "}}|{% endgeneration %}{% else %}U:{{ message['content'] }}|{% endif %}{% endfor %}{% if add_generation_prompt "
    "%}A:{% endif %}"
)


def examples(kind: str, count: int = 12) -> list[dict[str, Any]]:
    questions = [("q" * (3 * i + 1), "a" * (2 * i + 1)) for i in range(count)]
    if kind == "messages":
        return [{"messages": [user(q), answer(a), user("u"), answer("z")]} for q, a in questions]
    if kind == "chat_pair":
        return [{"prompt": [user(q)], "completion": [answer(a)]} for q, a in questions]
    if kind == "string_pair":
        return [{"prompt": q, "completion": " " + a} for q, a in questions]
    return [{"text": "t" * (5 * i + 1)} for i in range(count)]


def as_dataset(rows: list[dict[str, Any]]) -> datasets.Dataset:
    named = [{**row, "where": f"f:{number}"} for number, row in enumerate(rows, start=1)]
    return datasets.Dataset.from_list(named, features=features_of(kind_of(rows[0])))


@pytest.fixture
def model(tiny_llama_dir):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_llama_dir)


def ours(
    rows: list[dict[str, Any]], tokenizer: Any, args: SFTConfig, overlong: str = "truncate", name: str = "train"
) -> Prepared:
    kind, only = kind_of(rows[0]), args.completion_only_loss
    targets = Targets("completion" in rows[0] if only is None else only, args.assistant_only_loss)
    return prepare(as_dataset(rows), kind, tokenizer, args, overlong, targets, name)


def held(dataset: datasets.Dataset) -> dict[str, list]:
    return {name: dataset[name][:] for name in ("input_ids", "labels", "seq_lengths") if name in dataset.column_names}


SETTINGS = [
    {},
    {"completion_only_loss": True},
    {"completion_only_loss": False},
    {"max_length": 40},
    {"max_length": 40, "truncation_mode": "keep_end"},
    {"max_length": None},
    {"shuffle_dataset": True, "seed": 7},
    {"packing": True, "max_length": 48},
    {"packing": True, "max_length": 48, "packing_strategy": "bfd_split"},
    {"packing": True, "max_length": 48, "packing_strategy": "wrapped", "shuffle_dataset": True},
    {"packing": True, "eval_packing": False, "max_length": 48},
    {"packing": False, "eval_packing": True, "max_length": 48},
    {"packing": True, "max_length": 48, "dataset_num_proc": 2},
]
KINDS = ("messages", "chat_pair", "string_pair", "text")
# Every kind as TRL comes, and every setting with one kind in turn.
IN_TURN = [(KINDS[index % 4], settings) for index, settings in enumerate(SETTINGS) if settings]


@pytest.mark.parametrize(("kind", "settings"), [*((kind, {}) for kind in KINDS), *IN_TURN], ids=str)
def test_the_rows_are_those_of_sft_trainer(kind, settings, tokenizer, model):
    rows, args = examples(kind), arguments(**settings)
    plain = datasets.Dataset.from_list(rows)
    theirs = SFTTrainer(model, args, train_dataset=plain, eval_dataset=plain, processing_class=copy.deepcopy(tokenizer))
    for name, expected in (("train", theirs.train_dataset), ("eval", theirs.eval_dataset)):
        assert held(ours(rows, tokenizer, args, name=name).dataset) == held(expected)
    assert build_collator(tokenizer, args) == theirs.data_collator
    assert tokenizer.pad_token == theirs.processing_class.pad_token


def test_as_sft_trainer_by_assistant_marks(tokenizer, model):
    tokenizer.chat_template = MARKED
    args = arguments(assistant_only_loss=True)
    for kind in ("messages", "chat_pair"):
        rows = examples(kind, 4)
        theirs = SFTTrainer(model, args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer)
        assert held(ours(rows, tokenizer, args).dataset) == held(theirs.train_dataset)


def test_hand_worked_rows_and_counts(tokenizer):
    """Counts: examples, dropped as overlong, truncated, dropped as masked, masked, tokens, target tokens, longest."""
    rows = [{"prompt": "ab", "completion": "cd"}, {"prompt": "abcdef", "completion": "g"}]
    prepared = ours(rows, tokenizer, arguments(max_length=6))
    a = tokenizer.convert_tokens_to_ids("a")
    # ab|cd|<eos>: 5 tokens; abcdef|g|<eos>: 8, cut to 6, of which none bears loss
    assert held(prepared.dataset) == {
        "input_ids": [[a, a + 1, a + 2, a + 3, 2]],
        "labels": [[-100, -100, a + 2, a + 3, 2]],
    }
    assert prepared.stats == DataStats(1, 0, 1, 1, 0, 5, 3, 8, largest_token_id=a + 3)


def test_counts_of_packed_rows(tokenizer):
    rows = [{"text": "abcdefghij"}, {"text": "abc"}, {"text": "abcd"}]
    # with the end token 11, 4 and 5 tokens; cut to 8: 8 | 5 and no room for 4 | 4
    prepared = ours(rows, tokenizer, arguments(packing=True, max_length=8))
    assert prepared.dataset["seq_lengths"][:] == [[8], [5], [4]]
    assert prepared.stats == DataStats(
        3, 0, 1, 0, 0, 17, 14, 11, packs=3, fill_rate=17 / 24, largest_token_id=tokenizer.convert_tokens_to_ids("h")
    )
    # split instead: 8+3 | 5 | 4, that is 8 | 5+3 | 4
    prepared = ours(rows, tokenizer, arguments(packing=True, max_length=8, packing_strategy="bfd_split"))
    assert sorted(prepared.dataset["seq_lengths"][:]) == [[4], [5, 3], [8]]
    assert (prepared.stats.truncated, prepared.stats.tokens_total, prepared.stats.fill_rate) == (0, 20, 20 / 24)


def test_examples_without_target_tokens(tokenizer):
    rows = [{"prompt": "ab", "completion": "cd"}, {"prompt": "ab", "completion": "cd"}]
    args = arguments(packing=True, max_length=8)
    assert ours(rows, tokenizer, args).stats.masked == 0
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = "{% for m in messages if m['content'] != 'lost' %}{{ m['content'] }}{% endfor %}"
    chats = [
        {"prompt": [user("abc")], "completion": [answer("lost")]},
        {"prompt": [user("abc")], "completion": [answer("lost"), user("found")]},
    ]
    assert ours(chats, bare, args).stats.masked == 1
    stats = ours(chats, bare, arguments(max_length=64)).stats  # not packed: dropped, although nothing is too long
    assert (stats.examples, stats.dropped_masked, stats.truncated, stats.masked) == (1, 1, 0, 0)
    stats = ours(chats, bare, arguments(max_length=None)).stats  # TRL keeps it where there is no max_length
    assert (stats.examples, stats.dropped_masked, stats.masked) == (2, 0, 1)
    rows = [{"text": "ab"}, {"text": ""}]  # an end token alone: nothing predicts it
    for settings in ({}, {"max_length": None}, {"packing": True, "max_length": 8}):
        stats = ours(rows, tokenizer, arguments(**settings)).stats
        assert (stats.examples, stats.masked, stats.empty, stats.target_tokens) == (2, 1, 1, 2)


NO_ANSWER = (
    "a chat template that does not print the content of the assistant's messages, so there is nothing to learn from."
)
EMPTY = {
    "text": {"text": " \n"},
    "string_pair": {"prompt": "q", "completion": ""},
    "chat_pair": {"prompt": [user("q")], "completion": [answer(" ")]},
    "messages": {"messages": [user("q"), answer("a"), user("u"), answer("")]},
}


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_examples_are_counted(kind, tokenizer):
    rows = [*examples(kind, 3), EMPTY[kind], EMPTY[kind]]
    assert ours(rows, tokenizer, arguments()).stats.empty == 2
    assert refused(ours, rows[3:], tokenizer, arguments(), name="eval") == (
        "Every one of 2 eval examples is empty, so there is nothing to learn; the first is f:1. An example's text, "
        "completion or last answer must not be blank."
    )


def test_overlong_examples_are_dropped_or_named(tokenizer):
    rows = [{"text": "abcd"}, {"text": "abcdefgh"}, {"text": "abcdefghi"}, {"text": "ab"}]
    args = arguments(max_length=5)
    prepared = ours(rows, tokenizer, args, "drop")
    assert [len(ids) for ids in prepared.dataset["input_ids"][:]] == [5, 3]
    assert (prepared.stats.examples, prepared.stats.dropped_overlong, prepared.stats.truncated) == (2, 2, 0)
    assert prepared.stats.longest == 10
    assert refused(ours, rows, tokenizer, args, "error") == (
        "f:2: 9 tokens, more than train.max_length (5); 2 of 4 train examples are. Raise train.max_length, or set "
        "data.overlong to truncate or drop."
    )
    assert ours(rows[:1], tokenizer, args, "error").stats.examples == 1
    assert refused(ours, rows[1:3], tokenizer, args, "drop") == (
        "data.overlong: drop leaves no train example: all 2 are longer than train.max_length (5), the "
        "shortest has 9 tokens."
    )


def test_max_length_too_small(tokenizer):
    rows = [{"prompt": "abcdef", "completion": "g"}]
    assert refused(ours, rows, tokenizer, arguments(max_length=1)) == (
        "train.max_length: 1 is too small: predicting a token takes at least 2."
    )
    for packing in (False, True):
        assert refused(ours, rows, tokenizer, arguments(max_length=6, packing=packing)) == (
            "train.max_length: 6 is too small: no target token is left in any of the 1 train examples (the longest "
            "has 8 tokens)."
        )


def test_a_chat_template_that_is_none_or_prints_no_answer(tokenizer):
    remedy = "Set train.chat_template_path to a .jinja file or to a model whose template to take, or use plain text."
    for template, told in (
        (None, "no chat template, but the data are chats."),
        *(
            (one, NO_ANSWER)
            for one in ("hello", "{% for m in messages if m['role'] == 'user' %}{{ m.content }}{% endfor %}")
        ),
    ):
        tokenizer.chat_template = template
        for kind in ("messages", "chat_pair"):
            said = refused(ours, examples(kind), tokenizer, arguments())
            assert said == f"The tokenizer (unnamed) has {told} {remedy}"
        assert ours(examples("text"), tokenizer, arguments()).stats.examples == 12


def test_no_padding_token(tokenizer):
    tokenizer.pad_token = None
    assert build_collator(tokenizer, arguments()).pad_token_id == 2
    assert tokenizer.pad_token == "<|im_end|>"
    tokenizer.pad_token = tokenizer.eos_token = None
    assert refused(build_collator, tokenizer, arguments()) == (
        "The tokenizer (unnamed) has neither a padding nor an end-of-sequence token. Set train.pad_token to a token "
        "of its vocabulary."
    )
    told = refused(build_collator, tokenizer, arguments(pad_token="<pad>"))
    assert told == "train.pad_token: '<pad>' is not in the tokenizer's vocabulary."
    assert build_collator(tokenizer, arguments(pad_token="<|im_start|>")).pad_token_id == 1


def test_assistant_turns_that_are_not_there(tokenizer):
    args = arguments(assistant_only_loss=True)
    assert refused(ours, examples("text"), tokenizer, args) == (
        "train.assistant_only_loss: the data are strings, which have no assistant turns. Write `data.targets: last` "
        "for the completions, or `all`."
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% generation %}{% endgeneration %}"
    assert refused(ours, examples("messages"), tokenizer, args) == (
        "At least one of the train examples has no assistant token under the chat template's {% generation %} "
        "markers. Correct the template, or write `data.targets: last` or `all`."
    )


def test_a_chat_that_the_template_refuses_is_named(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}{{ "
        "m['content'] }}{% endfor %}"
    )
    rows = [*examples("messages", 2), {"messages": [{"role": "system", "content": "s"}, user("q"), answer("a")]}]
    assert refused(ours, rows, tokenizer, arguments()) == "f:3: the chat template refuses this chat: No system role."
    tokenizer.chat_template = "{% for m in messages %}\n{{ m['content'] }\n{% endfor %}"
    for args in (arguments(), arguments(assistant_only_loss=True)):
        said = refused(ours, rows, tokenizer, args)
        assert re.fullmatch(
            r"the chat template of .*:2: is not valid Jinja: unexpected '}'\. Correct it, or name another\.", said
        )
    for fault, why in (
        ("range(10 ** 9)", "Range too big."),
        ("1 / 0", "division by zero."),
        ("1 + 'a'", "unsupported "),
    ):
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}{{ " + fault + " }}"
        for args in (arguments(), arguments(assistant_only_loss=True)):
            assert f"f:1: the chat template refuses this chat: {why}" in refused(ours, rows, tokenizer, args)
