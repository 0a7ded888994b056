"""Prompts to answer: layouts, what rewards need of them, what the rewards give, and what is refused."""

import sys

import pytest
from made_data import answer, arguments, jsonl, recipe, system, user
from trl import GRPOConfig

from hf_efficient.data.build import read_raw
from hf_efficient.data.examples import open_sources
from hf_efficient.data.look import look_at
from hf_efficient.data.objectives import build_prompt_data, last_number, make_rewards
from hf_efficient.errors import DataError, SetupError
from hf_efficient.recipe.schema import RewardSection

SMALL = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 8}


@pytest.fixture
def build(tmp_path, tokenizer):
    def make(rows, *rewards, source=None, **data):
        wanted = recipe(jsonl(tmp_path / "prompts.jsonl", rows), "grpo", source=source, **data)
        wanted = wanted.model_copy(update={"rewards": [RewardSection(**one) for one in rewards]})
        return build_prompt_data(wanted, tokenizer, arguments(GRPOConfig, **SMALL))

    return make


def test_hand_worked_rows(build, tokenizer):
    found = build([{"prompt": "ab", "answer": "c"}, {"prompt": "abcd"}])
    assert found.train[:] == {"prompt": ["ab", "abcd"], "answer": ["c", None]}
    assert (found.lengths.tolist(), found.eval) == ([2, 4], None)
    assert found.largest_token_id == tokenizer.convert_tokens_to_ids("d")


def test_questions_as_gsm8k_has_them_are_chats(build, tokenizer):
    row = {"question": "2 + 2?", "answer": "2 + 2 = 4\n#### 4"}
    found = build([row], {"name": "number_match"}, system="Count.")
    assert found.train[0] == {"prompt": [system("Count."), user("2 + 2?")], "answer": row["answer"]}
    text = tokenizer.apply_chat_template(found.train[0]["prompt"], add_generation_prompt=True, tokenize=False)
    assert found.lengths.tolist() == [len(tokenizer(text)["input_ids"])]
    renamed = build([{"task": "2 + 2?", "solution": 4}], source={"columns": {"question": "task", "answer": "solution"}})
    assert renamed.train[0] == {"prompt": [user("2 + 2?")], "answer": "4"}


@pytest.mark.parametrize(
    ("row", "rewards", "message"),
    [
        ({"prompt": "a"}, [{"name": "number_match"}], r"prompts.jsonl:1: 'answer' is missing, and"),
        ({"prompt": "a", "answer": " "}, [{"name": "exact_match"}], "'answer' is missing, and the reward exact_match"),
        ({"prompt": "a", "answer": "no"}, [{"name": "number_match"}], "holds no number"),
        ({"prompt": [user(), answer()]}, [], "'prompt' ends with an assistant turn"),
        ({"prompt": " "}, [], "'prompt' is empty"),
        ({"prompt": 4}, [], "'prompt' must be a string"),
        ({"prompt": "a", "answer": True}, [], "'answer' must be a string"),
        ({"chosen": "a", "rejected": "b"}, [], "Known formats: prompt .prompt.; question .question."),
    ],
)
def test_rows_that_cannot_be_answered_or_rewarded(build, row, rewards, message):
    with pytest.raises(DataError, match=message):
        build([row], *rewards)


def test_too_few_prompts_for_one_generation(tmp_path, tokenizer):
    wanted = recipe(jsonl(tmp_path / "p.jsonl", [{"prompt": "a"}] * 3), "grpo")
    args = arguments(GRPOConfig, **{**SMALL, "gradient_accumulation_steps": 4})
    with pytest.raises(DataError, match="there are 3 prompts, and 4 are answered together"):
        build_prompt_data(wanted, tokenizer, args)


def test_the_look_shows_prompts(tmp_path, tokenizer):
    wanted = recipe(jsonl(tmp_path / "p.jsonl", [{"question": "2 + 2?", "answer": 4}] * 2), "grpo")
    found = look_at(wanted, tokenizer, arguments(GRPOConfig, **SMALL), 1)
    (shown,) = found.shown
    assert (found.examples, found.target_tokens, found.generations, found.completion_tokens) == (2, 0, 2, 8)
    assert "2 + 2?" in "".join(span.text for span in shown.spans)
    assert not any(span.target for span in shown.spans)
    raw = read_raw(wanted, arguments(GRPOConfig, **SMALL), open_sources(wanted.data))
    assert raw.kind == "chat_prompt"


NUMBERS = {
    "It is 1,250.": 1250.0,
    "7 apples\n####": None,
    "3 + 4 = 7\n#### 7.5": 7.5,
    "a -2": -2.0,
    "5, 6": 6.0,
    ".5": 0.5,
    "none": None,
}


def test_the_last_number():
    assert {text: last_number(text) for text in NUMBERS} == NUMBERS


def chat(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize(
    ("section", "completions", "expected"),
    [
        ({"name": "number_match"}, ["so 4", "so 5", "none"], [1.0, 0.0, 0.0]),
        ({"name": "number_match"}, [chat("#### 4"), chat("4 5"), chat("4.0")], [1.0, 0.0, 1.0]),
        ({"name": "exact_match"}, ["####\n4 ", "4", "# 4"], [1.0, 0.0, 0.0]),
        ({"name": "format", "pattern": "<a>.*</a>"}, ["<a>1\n2</a>\n", "x<a></a>", ""], [1.0, 0.0, 0.0]),
        ({"name": "length", "tokens": 4}, ["", "", ""], [1.0, 0.5, 0.0]),
    ],
)
def test_built_in_rewards(section, completions, expected):
    (reward,) = make_rewards([RewardSection(**section)])
    ids = [[1] * 4, [1] * 6, [1] * 9]
    assert reward(prompts=[], completions=completions, completion_ids=ids, answer=["#### 4"] * 3) == expected
    assert reward.__name__ == section["name"]


def test_two_formats_have_names_of_their_own():
    found = make_rewards([RewardSection(name="format", pattern=one) for one in ("a", "b")])
    assert [one.__name__ for one in found] == ["format", "format_1"]


def test_functions_of_the_users_own(tmp_path, monkeypatch):
    source = "def short(completions, **_):\n    return [0.5] * len(completions)\nx = 1\n"
    (tmp_path / "own_rewards.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_rewards", raising=False)
    (reward,) = make_rewards([RewardSection(function="own_rewards:short", run_code=True)])
    assert (reward(completions=[1, 2]), reward.__name__) == ([0.5, 0.5], "short")
    faults = {"nowhere_at_all:f": "cannot be", "own_rewards:tall": "there is no tall", "own_rewards:x": "no function"}
    for name, message in faults.items():
        with pytest.raises(SetupError, match=rf"rewards.0.function: .*{message}"):
            make_rewards([RewardSection(function=name, run_code=True)])
