"""``hf-efficient prepare``: what it prints, writes and answers."""

import json
from pathlib import Path

import pytest

from hf_efficient.recipe.load import load_recipe

ROWS = ["one text", "another text", "one text", "a third text"]


@pytest.fixture
def prepare(run, recipe, tiny_tokenizer):
    """``prepare(*flags)`` on a recipe with four rows, of which two are equal."""
    tiny_tokenizer.save_pretrained("model")
    Path("rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ROWS), encoding="utf-8")
    recipe.write_text("model: ./model\ndata: {train: rows.jsonl, pipeline: {normalise: {fix_encoding: false}}}\n")
    return lambda *flags: run("prepare", "r.yaml", *flags)


def test_the_funnel_is_printed_and_the_page_written(prepare):
    ended = prepare("--html", "data.html", "--tokens-per-second", "10", "cost.price_usd_per_hour=3600")
    assert ended.code == 0
    assert "exact duplicates: 3 of 4 rows, 1 removed: an exact copy" in ended.err
    # 8 characters and the end of the text are 9 tokens, at 10 a second and a dollar a second
    out = " ".join(ended.out.split())
    assert "9 tokens are not trained on, which saves 0.9 s and $0.90 in each epoch (--tokens-per-second)." in out
    assert "is written: 3 rows, 35 tokens." in out
    page = Path("data.html").read_text(encoding="utf-8")
    assert page.count("an exact copy") >= 2
    assert "a third text" in page
    assert "is up to date: 3 rows" in prepare().out


def test_json_holds_the_manifest(prepare):
    told = json.loads(prepare("--json").out)
    assert (told["rows"], told["fresh"]) == (3, False)
    assert [stage["rows_out"] for stage in told["stages"]] == [4, 4, 3, 3]
    assert Path(told["folder"], "train", "rows.parquet").is_file()


def test_what_is_not_known_of_the_cost_is_said(prepare):
    assert "what they would cost is not known: there is no run in outputs/r" in " ".join(prepare().out.split())


def test_a_recipe_without_a_pipeline_is_told_what_to_write(run, recipe):
    ended = run("prepare", "r.yaml")
    assert (ended.code, ended.err) == (
        2,
        "error: data.pipeline: is not set. Write `data.pipeline: {}` for the stages by default.\n",
    )


@pytest.mark.parametrize(
    ("pipeline", "told"),
    [
        ("{normalize: {}}", "data.pipeline.normalize: is no key of a recipe. Did you mean `normalise`?"),
        (
            "{near_duplicates: {bands: 0}}",
            "data.pipeline.near_duplicates.bands: is the number 0, but must be greater than 0.",
        ),
        ("{semantic_duplicates: {threshold: 1.5}}", "threshold: is the number 1.5, but must be at most 1."),
        ("{private_data: {kinds: [mial]}}", "Did you mean mail?"),
        ("{quality: {judge: {min_score: 7}}}", "quality.judge.min_score: is the number 7, but must be at most 5."),
        ("{quality: {perplexity: {drop_highest: 1}}}", "drop_highest: is the number 1, but must be less than 1."),
        ("{synthetic: {max_share: 0}}", "synthetic.max_share: is the number 0, but must be greater than 0."),
        ("{synthetic: {by: {url: 'localhost:8000'}}}", "data.pipeline.synthetic.by.url: is the text 'localhost:8000'"),
        ("3", "data.pipeline: is the number 3, but must be a mapping."),
    ],
)
def test_wrong_stages_and_options_are_named(run, recipe, pipeline, told):
    recipe.write_text(f"model: m/m\ndata: {{train: a/b, pipeline: {pipeline}}}\n", encoding="utf-8")
    ended = run("prepare", "r.yaml")
    assert ended.code == 2
    assert told in ended.err


def test_further_sources_may_be_a_path_alone(recipe):
    stages = "{contamination: {against: a.jsonl}, quality: {classifier: {good: [b.jsonl], bad: {path: c.jsonl}}}}"
    recipe.write_text(f"model: m/m\ndata: {{train: a/b, pipeline: {stages}}}\n", encoding="utf-8")
    pipeline = load_recipe(recipe).data.pipeline
    classifier = pipeline.quality.classifier
    sources = [*pipeline.contamination.against, *classifier.good, *classifier.bad]
    assert [one.path for one in sources] == ["a.jsonl", "b.jsonl", "c.jsonl"]
