"""Rows judged by models: which stay, what is asked, what happens where nobody answers."""

import math

import numpy as np
import pytest
import torch
from made_curation import lines
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from hf_efficient.curation import quality as module
from hf_efficient.curation.quality import perplexities, points
from hf_efficient.errors import DataError, ModelError

TEN = [f"text number {number}" for number in range(10)]


@pytest.mark.parametrize(
    ("answer", "found"),
    [("4", 4), ("Score: 3.5", 3.5), ("2 errors. Score: 5", 5), ("**0**", 0), ("4/5", 5), ("5.0", 5), ("Score: 4.", 4)],
)
def test_points_are_the_last_number_of_the_scale(answer, found):
    assert points(answer) == found


@pytest.mark.parametrize("answer", ["", "good", "-1", "7", "10", "5.5"])
def test_an_answer_without_points_has_none(answer):
    assert math.isnan(points(answer))


def judged(url, **more):
    return {"quality": {"judge": {"by": {"url": url, **more.pop("by", {})}, **more}}}


def test_a_judge_on_a_server_removes_rows_below_its_points(curate, server, monkeypatch):
    monkeypatch.setenv("HF_EFFICIENT_API_KEY", "secret")
    server.answer = lambda prompt: "no idea" if "number 9" in prompt else "Score: 1" if "number 3" in prompt else "4"
    by = {"usd_per_million_read": 100, "usd_per_million_written": 1000}
    done = curate(TEN, **judged(server.url, by=by))
    assert done.kept == [text for text in TEN if text[-1] not in "39"]
    stage = done.stages["quality.judge"]
    assert stage.reasons == {"points of the judge below 3": 1, "the judge gave no points": 1}
    # ten answers of 10 tokens read and 5 written: 100 at $100 and 50 at $1,000 a million
    assert stage.notes == [f"served at {server.url}: 150 tokens, $0.060"]
    assert stage.usd == pytest.approx(0.06)
    assert {one["temperature"] for one in server.asked} == {0.0}
    assert set(server.keys) == {"Bearer secret"}


def test_a_judge_that_does_not_answer_is_named(curate, tmp_path):
    with pytest.raises(ModelError, match=r"http://127\.0\.0\.1:9/v1/models does not answer: .*Start the server"):
        curate(TEN, **judged("http://127.0.0.1:9/v1"))
    assert not list((tmp_path / "prepared").glob("[!.]*"))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((500, "overloaded"), r"/chat/completions answers 500: 'overloaded'"),
        ((401, "who?"), r"answers 401: 'who\?'\. Set HF_EFFICIENT_API_KEY to its key"),
        ((200, "<html>"), r"answers in another form than OpenAI's: '<html>'\. Write the URL up to /v1"),
        ((200, '{"choices": []}'), "answers in another form"),
        ((200, '{"choices": [{"message": {"content": [{"text": "5"}]}}]}'), "answers in another form"),
    ],
)
def test_a_faulty_answer_is_shown(curate, server, answer, told):
    server.answer = lambda prompt: answer
    with pytest.raises(ModelError, match=told):
        curate(TEN[:1], **judged(server.url))
    assert len(server.asked) == (4 if answer[0] == 500 else 1)


def test_a_server_that_fails_half_way_is_asked_for_the_rest_alone(curate, server, tmp_path):
    server.answer = lambda prompt: (503, "down") if "number 6" in prompt else "4"
    with pytest.raises(ModelError, match="answers 503"):
        curate(TEN, **judged(server.url, by={"at_a_time": 1}))
    assert not list((tmp_path / "prepared").glob("[!.]*"))
    server.asked.clear()
    server.answer = lambda prompt: "4"
    assert curate(TEN, **judged(server.url, by={"at_a_time": 1})).kept == TEN
    assert len(server.asked) == 4


def test_a_busy_server_is_asked_again(curate, server):
    answers = iter([(429, "slow down"), (503, "down"), "4"])
    server.answer = lambda prompt: next(answers)
    assert curate(TEN[:1], **judged(server.url)).kept == TEN[:1]


def test_a_budget_that_does_not_suffice_stops_before_it_is_passed(curate, server):
    with pytest.raises(DataError, match=r"data\.pipeline\.quality\.judge\.by\.budget: does not suffice after 0 rows"):
        curate(TEN, **judged(server.url, by={"budget": {"tokens": 100}}))
    assert server.asked == []


def test_dollars_need_a_price(curate, server):
    with pytest.raises(DataError, match=r"budget\.usd: nothing says what a token costs\. Write data\.pipeline"):
        curate(TEN, **judged(server.url, by={"budget": {"usd": 1}}))


def test_a_judge_that_refuses_everything_stops_the_run_with_the_rows(curate, server):
    server.answer = lambda prompt: "0"
    with pytest.raises(DataError, match=r"quality\.judge: removes all 10 rows that reach it(.|\n)*rows\.jsonl:1"):
        curate(TEN, **judged(server.url))


def test_perplexity_is_that_of_the_whole_text_after_its_beginning(tiny_llama_dir):
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(tiny_llama_dir),
        AutoTokenizer.from_pretrained(tiny_llama_dir),
    )
    texts = ["a", "one longer text", "another"]
    for text, found in zip(texts, perplexities(model.eval(), tokenizer, texts), strict=True):
        ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
        with torch.no_grad():
            assert found == pytest.approx(model(ids, labels=ids).loss.exp().item(), rel=1e-4)


def test_a_model_that_computes_no_number_finds_a_row_surprising(tiny_llama_dir):
    model, tokenizer = (one.from_pretrained(tiny_llama_dir) for one in (AutoModelForCausalLM, AutoTokenizer))
    model.lm_head.weight.data.fill_(float("nan"))
    assert perplexities(model.eval(), tokenizer, ["a"]) == [pytest.approx(math.exp(20), rel=1e-5)]


def test_the_rows_that_surprise_the_base_model_most_go(curate, tiny_llama_dir, monkeypatch):
    monkeypatch.setattr(module, "perplexities", lambda model, tokenizer, texts: [float(text[-1]) for text in texts])
    for options, kept in ({}, 9), ({"drop_highest": 0.3}, 7), ({"max": 4.0}, 5), ({"max": 4.0, "min": 2.0}, 3):
        done = curate(TEN, model=str(tiny_llama_dir), quality={"perplexity": options})
        assert len(done.texts) == kept
    assert done.stages["quality.perplexity"].reasons == {"perplexity above 4": 5, "perplexity below 2": 2}


def test_a_row_is_scored_once(curate, tiny_llama_dir, monkeypatch):
    asked = []

    def scores(model, tokenizer, texts):
        asked.extend(texts)
        return [1.0] * len(texts)

    monkeypatch.setattr(module, "perplexities", scores)
    for most in (5, 6):
        curate(TEN, model=str(tiny_llama_dir), quality={"perplexity": {"max": most}})
    assert sorted(asked) == TEN


def test_a_reward_model_scores_each_row(curate, tmp_path, tiny_tokenizer):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForSequenceClassification(LlamaConfig(vocab_size=len(tiny_tokenizer), num_labels=1, **sizes))
    for folder in (tmp_path / "reward", tmp_path / "headless"):
        tiny_tokenizer.save_pretrained(folder)
    model.save_pretrained(tmp_path / "reward")
    model.model.save_pretrained(tmp_path / "headless")
    done = curate(TEN, quality={"reward": {"model": str(tmp_path / "reward"), "drop_lowest": 0.2}})
    with torch.no_grad():
        scores = [model.eval()(**tiny_tokenizer(text, return_tensors="pt")).logits.item() for text in TEN]
    assert done.kept == [text for text, score in zip(TEN, scores, strict=True) if score >= np.quantile(scores, 0.2)]
    with pytest.raises(ModelError, match=r"lacks weights of LlamaForSequenceClassification.*score\.weight"):
        curate(TEN, quality={"reward": {"model": str(tmp_path / "headless")}})


@pytest.fixture
def letters(monkeypatch):
    """An encoder that sees how often each letter is written."""

    def encode(texts):
        return np.array([[text.count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float)

    monkeypatch.setattr(module, "sentence_encoder", lambda name: encode)


def classifier(tmp_path, good, bad):
    named = {"good": good, "bad": bad}
    paths = {side: str(lines(tmp_path / f"{side}.jsonl", texts)) for side, texts in named.items()}
    return {"quality": {"classifier": {side: [{"path": path}] for side, path in paths.items()}}}


def test_a_classifier_learns_from_good_and_bad_rows(curate, tmp_path, letters):
    stages = classifier(tmp_path, ["apple " * n for n in range(1, 21)], ["zoo " * n for n in range(1, 21)])
    done = curate(["an apple pie", "zoo zoo", "apples appeal"], **stages)
    assert done.kept == ["an apple pie", "apples appeal"]
    (note,) = done.stages["quality.classifier"].notes
    assert note == "100% right on 20 good and 20 bad rows in cross-validation, balanced"


def test_a_classifier_that_guesses_is_told(curate, tmp_path, letters):
    same = ["apple " * n for n in range(1, 21)]
    done = curate(["an apple pie", "apples"], **classifier(tmp_path, same, same), length={})
    assert done.stages["quality.classifier"].notes[0].endswith("that is hardly better than chance")


def test_a_classifier_needs_rows(curate, tmp_path, letters):
    with pytest.raises(DataError, match=r"quality\.classifier\.bad: has 2 rows\. Give at least 10"):
        curate(TEN, **classifier(tmp_path, TEN, TEN[:2]))


def test_other_good_rows_make_another_version(curate, tmp_path, letters):
    good, bad = ["apple " * n for n in range(1, 21)], ["zoo " * n for n in range(1, 21)]
    first = curate(["an apple"], **classifier(tmp_path, good, bad)).done.folder
    assert curate(["an apple"], **classifier(tmp_path, good[1:], bad)).done.folder != first
