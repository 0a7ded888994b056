import copy

import datasets
import pytest
from made_data import answer, arguments, jsonl, recipe, refused, user

from hf_efficient.data.build import PreferenceData, build_preference_data
from hf_efficient.data.stats import LeftOut
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.train_fields import trl_class


def config(objective: str, **fields):
    return arguments(trl_class(OBJECTIVES[objective].config), **fields)


@pytest.fixture
def build(tmp_path, tokenizer):
    def make(
        rows: list[dict], max_length: int | None = 64, eval_fraction: float | None = None, objective: str = "dpo"
    ) -> PreferenceData:
        wanted = recipe(jsonl(tmp_path / "pairs.jsonl", rows), objective, eval_fraction=eval_fraction)
        return build_preference_data(wanted, tokenizer, config(objective, max_length=max_length))

    return make


def text_pair(length: int) -> dict:
    return {"prompt": "p" * length, "chosen": "yes", "rejected": "no"}


def chat_pair(length: int) -> dict:
    return {"prompt": [user("p" * length)], "chosen": [answer("yes")], "rejected": [answer("no")]}


def test_hand_worked_rows(build, tokenizer):
    ids = tokenizer.convert_tokens_to_ids
    data = build([{"prompt": "ab", "chosen": "c", "rejected": "de"}])
    assert data.train[:] == {
        "prompt": ["ab"],
        "chosen": ["c<|im_end|>"],
        "rejected": ["de<|im_end|>"],
        "prompt_ids": [[ids("a"), ids("b")]],
        "chosen_ids": [[ids("c"), 2]],
        "rejected_ids": [[ids("d"), ids("e"), 2]],
    }
    assert (data.eval, data.left_out, data.largest_token_id) == (None, (), ids("e"))


@pytest.mark.parametrize("pair", [text_pair, chat_pair])
@pytest.mark.parametrize("max_length", [None, 45])
@pytest.mark.parametrize("objective", ["dpo", "reward", "kto", "orpo", "cpo"])
def test_the_rows_are_those_of_trls_trainer(objective, pair, max_length, build, tokenizer, tiny_llama_dir):
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if objective in ("orpo", "cpo") and max_length is None:
        max_length = 512  # what they take it for
    rows = [pair(length) for length in range(1, 60, 6)]
    data = build(rows, max_length, objective=objective)
    if objective == "kto":  # in the order in which it trains
        names = ("prompt", "completion", "label")
        rows = [{name: row[name] for name in names} for row in data.train]
        whole = build([pair(length) for length in range(1, 60, 6)], None, objective=objective).train
        assert [row["prompt"] for row in whole] != sorted([row["prompt"] for row in whole], key=str)
    load = AutoModelForSequenceClassification if objective == "reward" else AutoModelForCausalLM
    theirs = trl_class(OBJECTIVES[objective].trainer)(
        load.from_pretrained(tiny_llama_dir, **({"num_labels": 1} if objective == "reward" else {})),
        args=config(objective, max_length=max_length),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=copy.deepcopy(tokenizer),
    ).train_dataset
    columns = [name for name in theirs.column_names if name.endswith(("ids", "labels", "mask", "label"))]
    if objective in ("orpo", "cpo") and max_length == 45:  # they keep rows without an answer
        theirs = theirs.filter(lambda row: any(label != -100 for label in row["chosen_labels"]))
    assert data.train.select_columns(columns)[:] == theirs.select_columns(columns)[:]
    held = 2 * 10 if objective == "kto" and max_length is None else len(rows)
    assert data.dropped == held - len(theirs) if objective != "kto" else data.dropped % 2 == 0


def test_rows_that_teach_nothing_are_left_out_and_named(build, tmp_path):
    where = tmp_path / "pairs.jsonl"
    good, same = text_pair(3), {"prompt": "p", "chosen": "yes", "rejected": "yes"}
    empty = {"prompt": [user()], "chosen": [answer(" ")], "rejected": [answer("no")]}
    data = build([good, same, good, same])
    assert (len(data.train), data.left_out) == (2, (LeftOut("both answers are the same", 2, f"{where}:2"),))
    assert build([chat_pair(2), empty]).left_out == (LeftOut("an answer is empty", 1, f"{where}:2"),)
    left = f"{where}:1: both answers are the same, and no train row is left to train on. Correct the data."
    assert refused(build, [same, same]) == left
    (long,) = build([{**good, "chosen": "y" * 90}, good], objective="reward").left_out
    assert long == LeftOut("an answer with its prompt is longer than train.max_length 64", 1, f"{where}:1")


def test_labelled_answers(build):
    rows = [{"prompt": "p", "completion": f"a{n}", "label": n % 2 == 0} for n in range(4)]
    assert (build(rows, objective="kto").good, build(rows, objective="kto").remark) == (2, "")
    assert build([*rows, *rows[:1] * 4], objective="kto").remark == (
        "good answers weigh 3 times the bad ones, and KTO asks for 1 to 1.33: write `train.undesirable_weight: 2.6`"
    )
    assert "write `train.desirable_weight: 3.4`" in build([*rows, *rows[1:2] * 4], objective="kto").remark
    for label, other in ((True, "false"), (False, "true")):
        said = refused(build, [{**row, "label": label} for row in rows], objective="kto")
        assert said.startswith(f"data.train: all 4 answers have the label {str(label).lower()}, and KTO learns from")
        assert f"Add answers with the label {other}" in said
    assert "'label' must be true (a good answer) or false (a bad one), found" in refused(
        build, [{**rows[0], "label": 1}], objective="kto"
    )


def test_prompts_that_differ_between_the_sides(build, tmp_path):
    sides = {name: [user("s"), user(name), answer("a")] for name in ("chosen", "rejected")}
    assert refused(build, [sides]) == (
        f"{tmp_path / 'pairs.jsonl'}:1: the prompts of 'chosen' and 'rejected' differ from message 2 on. Both must "
        "answer the same conversation."
    )


def test_pairs_whose_prompt_fills_max_length_are_counted(build):
    data = build([text_pair(length) for length in (3, 7, 8, 9)], max_length=8)
    assert (data.train["prompt"][:], data.dropped) == (["ppp", "ppppppp"], 2)
    split = build([text_pair(3)] * 2 + [text_pair(8)] * 6, max_length=8, eval_fraction=0.5)
    assert len(split.train) + split.dropped == 4


def test_no_end_token(build, tokenizer):
    tokenizer.pad_token = tokenizer.eos_token = None
    assert refused(build, [text_pair(3)]) == (
        "The tokenizer (unnamed) has no end-of-sequence token, which ends every text. Name a tokenizer that has one "
        "in model.tokenizer."
    )
