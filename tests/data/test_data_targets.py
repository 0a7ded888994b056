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
OWN = {path.stem: path.read_text() for path in (Path(__file__).parent / "templates").glob("*.jinja")}
OF_TRL = ("llama3", "llama3_1", "llama3_2", "qwen2_5", "qwen3", "qwen3_instruct_2507", "gemma", "gemma3")
TEMPLATES = {
    "chatml": CHATML,
    "smollm2": SMOLLM2,
    **OWN,
    **{name: (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text() for name in OF_TRL},
}
# What is learnt of [user q1, assistant a1, user q2, assistant a2].
LEARNT = {
    **dict.fromkeys(("chatml", "smollm2", "qwen3_instruct_2507"), "a1<|im_end|>\na2<|im_end|>\n"),
    "mistral_v0.1_early": "a1<|im_end|> a2<|im_end|> ",
    **dict.fromkeys(("mistral_v0.2_early", "mistral_nemo", "zephyr"), "a1<|im_end|>a2<|im_end|>"),
    **dict.fromkeys(("mistral_v0.2", "mistral_v0.3", "mistral_large_2411"), " a1<|im_end|> a2<|im_end|>"),
    "llama2": " a1 <|im_end|> a2 <|im_end|>",
    **dict.fromkeys(("llama3", "llama3_1", "llama3_2"), "a1<|eot_id|>a2<|eot_id|>"),
    **dict.fromkeys(("gemma", "gemma3"), "a1<end_of_turn>\na2<end_of_turn>\n"),
    "qwen2_5": "\na1<|im_end|>\n\na2<|im_end|>\n",
    "qwen3": "a1<|im_end|>\n<think>\n\n</think>\n\na2<|im_end|>\n",
}
WITHOUT_SYSTEM = ("gemma", "mistral_v0.1_early", "mistral_v0.2_early")
LOOK = {"name": "look", "description": "Looks it up.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": LOOK}]
PIECES = ("word ", " ", "\n", "é", "日本語", "🙂", "{{ x }}", "<b>", "'", '"', "\\n", "<think>\nhm\n</think>\n\n")


@pytest.fixture
def tokenizer(tokenizer):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eot_id|>", "<end_of_turn>"]})
    return tokenizer


def text(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.randint(1, 8)))


def conversation(draw: random.Random, with_system: bool, with_tools: bool = False) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for _ in range(draw.randint(1, 4)):
        called = tool_call(draw) if with_tools and draw.random() < 0.5 else []
        turns += [user(text(draw)), *called, answer(text(draw))]
    return [system(text(draw)), *turns] if with_system else turns


def tool_call(draw: random.Random) -> list[dict[str, Any]]:
    function = {"name": "look", "arguments": {"what": text(draw)}}
    call = {"id": "call12345", "type": "function", "function": function}  # Mistral's are of nine characters
    result = {"role": "tool", "name": "look", "tool_call_id": "call12345", "content": text(draw)}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}, result]


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_marked_template_renders_as_the_own_one(family, tokenizer):
    tokenizer.chat_template = TEMPLATES[family]
    draw = random.Random(17)
    has_tools = "tool_calls" in TEMPLATES[family]
    chats = [
        (conversation(draw, family not in WITHOUT_SYSTEM and index % 2 == 0, has_tools and index % 3 == 0), index % 3)
        for index in range(200)
    ]
    marked = marked_template([{"messages": chat} for chat, kind in chats if kind], tokenizer)
    assert marked is not None
    for chat, kind in chats:
        given = {"tokenize": False, "tools": TOOLS if has_tools and kind == 0 else None}
        assert tokenizer.apply_chat_template(chat, chat_template=marked, **given) == (
            tokenizer.apply_chat_template(chat, **given)
        )


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
