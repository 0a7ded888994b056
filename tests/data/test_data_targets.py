"""The assistant's turns as targets: templates with markers, and beginnings rendered where there are none."""

import random
from pathlib import Path
from typing import Any

import datasets
import pytest
import trl
from made_data import answer, arguments, jsonl, recipe, refused, system, user
from trl import SFTTrainer

from hf_efficient.data.build import build_sft_data
from hf_efficient.data.targets import answers_by_beginnings, marked_template, with_markers

CHATML = (
    r"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    r"'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMOLLM2 = (
    r"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    r"are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    r"message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    r"'<|im_start|>assistant\n' }}{% endif %}"
)
# Mistral's own texts are not at hand here: these end a turn by the statements of its v0.1, v0.3 and Nemo.
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\n    ANSWER\n{%- else %}"
    "{{- '[INST] ' + message['content'] + '[/INST]' }}{% endif %}{% endfor %}"
)
ANSWERS = {
    "mistral_v0.1": "{{ message['content'] + eos_token + ' ' }}",
    "mistral_v0.3": '{{- " " + message["content"]|trim + eos_token}}',
    "mistral_nemo": '{{- message["content"] + eos_token}}',
}
OF_TRL = ("llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507", "gemma", "gemma3")
TEMPLATES = {
    "chatml": CHATML,
    "smollm2": SMOLLM2,
    **{name: MISTRAL.replace("ANSWER", statement) for name, statement in ANSWERS.items()},
    **{name: (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text() for name in OF_TRL},
}
# What is learnt of [user q1, assistant a1, user q2, assistant a2].
LEARNT = {
    **dict.fromkeys(("chatml", "smollm2", "qwen3_instruct_2507"), "a1<|im_end|>\na2<|im_end|>\n"),
    "mistral_v0.1": "a1<|im_end|> a2<|im_end|> ",
    "mistral_v0.3": " a1<|im_end|> a2<|im_end|>",
    "mistral_nemo": "a1<|im_end|>a2<|im_end|>",
    **dict.fromkeys(("llama3", "llama3_1", "llama3_2"), "a1<|eot_id|>a2<|eot_id|>"),
    **dict.fromkeys(("gemma", "gemma3"), "a1<end_of_turn>\na2<end_of_turn>\n"),
    "qwen2_5": "\na1<|im_end|>\n\na2<|im_end|>\n",
    "qwen3": "a1<|im_end|>\n<think>\n\n</think>\n\na2<|im_end|>\n",
}
PIECES = ("word ", " ", "\n", "é", "日本語", "🙂", "{{ x }}", "<b>", "'", '"', "\\n", "<think>\nhm\n</think>\n\n")


@pytest.fixture
def tokenizer(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot_id|>", "<end_of_turn>"]})
    return tokenizer


def text(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.randint(1, 8)))


def conversation(draw: random.Random, with_system: bool) -> list[dict[str, str]]:
    turns = [turn for _ in range(draw.randint(1, 4)) for turn in (user(text(draw)), answer(text(draw)))]
    return [system(text(draw)), *turns] if with_system else turns


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_marked_template_renders_as_the_own_one(family, tokenizer):
    tokenizer.chat_template = TEMPLATES[family]
    draw = random.Random(17)
    chats = [conversation(draw, family != "gemma" and index % 2 == 0) for index in range(200)]
    marked = marked_template([{"messages": chat} for chat in chats], tokenizer)
    assert marked is not None
    rendered = [tokenizer.apply_chat_template(chat, tokenize=False, chat_template=marked) for chat in chats]
    assert rendered == [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]


def data_of(rows: list[dict[str, Any]], tokenizer: Any, tmp_path: Path, args: Any = None, **data: Any) -> Any:
    source = jsonl(tmp_path / "rows.jsonl", rows)
    return build_sft_data(recipe(source, cache_dir=str(tmp_path), **data), tokenizer, args or arguments())


def learnt(data: Any, tokenizer: Any, row: int = 0) -> str:
    return tokenizer.decode([label for label in data.train[row]["labels"] if label != -100])


TWO_TURNS = [user("q1"), answer("a1"), user("q2"), answer("a2")]


@pytest.mark.parametrize("family", TEMPLATES)
def test_hand_made_masks(family, tokenizer, tmp_path):
    tokenizer.chat_template = TEMPLATES[family]
    data = data_of([{"messages": TWO_TURNS}], tokenizer, tmp_path)
    assert learnt(data, tokenizer) == LEARNT[family]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (None, "a1<|im_end|>\na2<|im_end|>\n"),
        ("assistant", "a1<|im_end|>\na2<|im_end|>\n"),
        ("last", "a2<|im_end|>\n"),
        ("all", "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n<|im_start|>user\nq2<|im_end|>\n"
         "<|im_start|>assistant\na2<|im_end|>\n"),
    ],
)  # fmt: skip
def test_targets_of_a_chat(targets, expected, tokenizer, tmp_path):
    assert learnt(data_of([{"messages": TWO_TURNS}], tokenizer, tmp_path, targets=targets), tokenizer) == expected


def test_targets_of_other_layouts(tokenizer, tmp_path):
    strings, chats = {"prompt": "ab", "completion": "cd"}, {"prompt": TWO_TURNS[:3], "completion": TWO_TURNS[3:]}
    for targets in (None, "last"):
        assert learnt(data_of([strings], tokenizer, tmp_path, targets=targets), tokenizer) == "cd<|im_end|>"
        assert learnt(data_of([chats], tokenizer, tmp_path, targets=targets), tokenizer) == "a2<|im_end|>\n"
    assert learnt(data_of([strings], tokenizer, tmp_path, targets="all"), tokenizer) == "abcd<|im_end|>"
    both = "a1<|im_end|>\na2<|im_end|>\n"
    assert learnt(data_of([chats], tokenizer, tmp_path, targets="assistant"), tokenizer) == both
    assert refused(data_of, [strings], tokenizer, tmp_path, targets="assistant") == (
        "data.targets: assistant: the data are strings, which have no assistant turns. Write `data.targets: last` for "
        "the completions, or `all`."
    )
    assert refused(data_of, [{"text": "t"}], tokenizer, tmp_path, targets="last").startswith("data.targets: last: ")


def test_the_older_keys_still_work(tokenizer, tmp_path):
    row = {"messages": TWO_TURNS}

    def of(**keys: Any) -> str:
        return learnt(data_of([row], tokenizer, tmp_path, arguments(**keys)), tokenizer)

    assert of(completion_only_loss=True) == "a2<|im_end|>\n"
    assert of(assistant_only_loss=True) == "a1<|im_end|>\na2<|im_end|>\n"
    assert of(completion_only_loss=False).startswith("<|im_start|>user")


@pytest.mark.parametrize("family", ["llama3", "qwen2_5", "qwen3_instruct_2507", "gemma"])
def test_the_labels_and_the_loss_are_those_of_trl(family, tokenizer, tmp_path, tiny_llama_dir):
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer.chat_template = TEMPLATES[family]
    draw = random.Random(3)
    rows = [{"messages": conversation(draw, with_system=False)} for _ in range(4)]
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir)
    model.resize_token_embeddings(len(tokenizer))
    args = arguments(assistant_only_loss=True, max_length=None)
    data = data_of(rows, tokenizer, tmp_path, arguments(max_length=None))
    theirs = SFTTrainer(model, args, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer)
    losses = []
    for rows_of, collate in ((data.train, data.collator), (theirs.train_dataset, theirs.data_collator)):
        batch = collate([{key: row[key] for key in ("input_ids", "labels")} for row in rows_of])
        with torch.no_grad():
            losses.append(model(**batch).loss)
    assert torch.equal(*losses)
    assert data.train["labels"][:] == theirs.train_dataset["labels"][:]


def test_beginnings_where_no_statement_is_known(tokenizer, tmp_path):
    """A template that builds each turn before it prints it."""
    tokenizer.chat_template = (
        "{% for m in messages %}{% set turn = m['role'] + ':' + m['content'] + '<|im_end|>' %}{{ turn }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    assert with_markers(tokenizer.chat_template) is None
    assert learnt(data_of([{"messages": TWO_TURNS}], tokenizer, tmp_path), tokenizer) == "a1<|im_end|>a2<|im_end|>"
    pair = {"prompt": TWO_TURNS[:3], "completion": TWO_TURNS[3:]}
    old = data_of([pair], tokenizer, tmp_path, arguments(assistant_only_loss=True))
    assert learnt(old, tokenizer) == "a2<|im_end|>"
    tokenizer.chat_template = tokenizer.chat_template.replace("m['content']", "m['content'] + messages|length|string")
    assert refused(data_of, [{"messages": TWO_TURNS}], tokenizer, tmp_path) == (
        f"{tmp_path}/rows.jsonl:1: the chat template renders the first 2 messages otherwise than in the whole chat, so "
        "the assistant's turns cannot be found. Write `data.targets: last` or `all`, or name a template with "
        "{% generation %} markers in train.chat_template_path."
    )


@pytest.mark.parametrize("family", ["chatml", "llama3_1", "gemma", "mistral_nemo"])
def test_beginnings_find_what_the_markers_mark(family, tokenizer):
    tokenizer.chat_template = TEMPLATES[family]
    whole = tokenizer.apply_chat_template(TWO_TURNS, tokenize=False)
    spans = answers_by_beginnings(tokenizer, TWO_TURNS, whole, "f:1")
    assert "".join(whole[first:end] for first, end in spans) == LEARNT[family]


def test_a_statement_that_leaves_out_the_end_of_the_turn_is_not_trusted(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ':' + m['content'] }}{{ '<|im_end|>' }}{% endfor %}"
    )
    assert with_markers(tokenizer.chat_template) is not None
    assert marked_template([{"messages": TWO_TURNS}], tokenizer) is None


def test_the_end_of_a_turn_must_be_a_token(tokenizer, tmp_path):
    tokenizer.chat_template = CHATML.replace("<|im_end|>", "<|over|>")
    assert refused(data_of, [{"messages": TWO_TURNS}], tokenizer, tmp_path) == (
        "The tokenizer (unnamed) has a chat template that ends a turn with <|over|>, which is no token of its "
        "vocabulary. Set train.chat_template_path to a .jinja file or to a model whose template to take, or use plain "
        "text."
    )
