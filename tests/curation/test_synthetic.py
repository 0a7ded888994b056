"""Rows that a model writes: their form, critique and revision, the stages after them, budgets, share and collapse."""

import itertools
import json
import random

import pytest

from hf_efficient.curation.synthetic import as_form, distinct_runs, from_form
from hf_efficient.errors import DataError, ModelError

SUBJECTS = ["apples", "bridges", "clocks", "deserts", "engines", "forests", "glaciers", "harbours", "islands"]
REAL = [f"How do {one} change when the {two} nearby are old?" for one, two in itertools.permutations(SUBJECTS, 2)]
CHAT = {"messages": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2.\nTwo."}]}


class Author:
    """Writes ``texts`` in turn, then another each time; the critic gives ``points``, ``revised`` is the revision."""

    def __init__(self, *texts, points="5", revised=None):
        self.texts, self.points, self.revised = iter(texts), points, revised
        self.count = itertools.count(1)

    def __call__(self, prompt):
        if prompt.startswith("Criticise"):
            return f"Fine.\nScore: {self.points(prompt) if callable(self.points) else self.points}"
        if "Criticism:" in prompt:
            return self.revised
        number = next(self.count)
        return next(
            self.texts, f"Story {number} tells that {number * 7} birds saw {number * 11} ships at {number * 3}."
        )


def synthetic(server, rows=8, **more):
    return {"synthetic": {"by": {"url": server.url, "at_a_time": 1, **more.pop("by", {})}, "rows": rows, **more}}


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        ("messages", CHAT),
        ("chat_pair", {"prompt": CHAT["messages"][:1], "completion": CHAT["messages"][1:]}),
        ("string_pair", {"prompt": "1 + 1?", "completion": "2.\nTwo."}),
        ("text", {"text": "One.\nTwo."}),
        ("text", {"text": "# One\n\n## Two\n\n```\nx = 3\n```"}),
    ],
)
def test_an_example_comes_back_from_its_form(kind, example):
    assert from_form(as_form(example), kind) == example
    assert from_form(f"```\n{as_form(example)}\n```", kind) == example
    assert from_form(f"### Example 4\n{as_form(example)}\n\n### Example 5\nUser: 3?", kind) == example


@pytest.mark.parametrize(
    "text", ["", "1 + 1 = 2", "User: 1?", "Assistant: 2", "User:\nAssistant: 2", "User: 1?\nUser: 2?"]
)
def test_what_has_another_form_is_no_chat(text):
    assert from_form(text, "messages") is None


def test_marked_labels_are_read_and_an_open_question_is_cut_off():
    chat = from_form("**User:** 1?\n**Assistant:** 2\nUser: and 3?", "messages")
    assert [one["content"] for one in chat["messages"]] == ["1?", "2"]


def test_runs_of_three_words_by_hand():
    assert distinct_runs(["a b c d", "a b c"], 100) == pytest.approx(2 / 3)  # abc, bcd, abc
    assert distinct_runs(["a b c d", "a b c"], 4) == 1


def test_written_rows_are_marked_and_follow_the_seeds(curate, server):
    server.answer = Author()
    done = curate(REAL, **synthetic(server))
    written = [
        (where, text) for where, text, source in zip(*map(done.column, ("where", "text", "source")), strict=True)
        if source == "data.pipeline.synthetic (http" + server.url[4:] + ")"
    ]  # fmt: skip
    assert len(written) == 8
    assert all(where.startswith("written ") and where.count("rows.jsonl:") == 3 for where, _ in written)
    assert all(text.startswith("Story ") for _, text in written)
    assert [(one.key, one.rows) for one in done.manifest.sources] == [
        ("data.train.0", 72),
        ("data.pipeline.synthetic", 8),
    ]
    prompt = server.prompts[0]
    assert prompt.startswith("Write one new example of the same kind as these, on another subject.")
    assert sum(text in prompt for text in REAL) == 3
    assert done.stages["blend"].rows_in == 80
    assert done.stages["synthetic"].notes == [f"served at {server.url}: {15 * 16} tokens"]


def test_poor_rows_are_revised_and_those_that_stay_poor_go(curate, server):
    poor = ["A poor story one of old ships.", "A poor story two of new ships."]
    server.answer = Author(*poor, points=lambda prompt: "1" if "poor" in prompt else "4", revised="A good long story.")
    done = curate(REAL, **synthetic(server, rows=3))
    assert done.stages["synthetic"].rows_out == 3
    assert done.stages["synthetic.exact_duplicates"].reasons == {"an exact copy": 1}
    worse = [text.replace("story", "tale") for text in poor]
    server.answer = Author(*worse, points=lambda prompt: "1" if "poor" in prompt else "4", revised="Still poor.")
    done = curate(REAL, seed=1, **synthetic(server, rows=3))
    assert done.stages["synthetic"].reasons == {"the critic gives it less than 3": 2}
    assert {one.text for one in done.stages["synthetic"].removed} == {"Still poor."}


def test_without_a_least_score_nobody_criticises(curate, server):
    server.answer = Author()
    curate(REAL, **synthetic(server, rows=3, min_score=0))
    assert len(server.asked) == 3


def test_copies_of_real_rows_and_evaluation_texts_go(curate, server, tmp_path):
    secret = "What did the seven grey geese of the northern lake say when the ice broke last winter?"
    (tmp_path / "eval.jsonl").write_text(json.dumps({"text": secret}) + "\n", encoding="utf-8")
    server.answer = Author(REAL[0], REAL[1] + " Why?", f"Then: {secret}", "")
    against = {"contamination": {"against": [{"path": str(tmp_path / "eval.jsonl")}]}}
    done = curate(REAL, **synthetic(server, rows=6), **against)
    assert done.stages["synthetic"].reasons == {"not in the form that was asked for": 1}
    assert done.stages["synthetic.exact_duplicates"].reasons == {"an exact copy": 1}
    assert done.stages["synthetic.near_duplicates"].reasons == {"a near copy": 1}
    assert done.stages["synthetic.contamination"].reasons == {"shares text with evaluation data": 1}
    assert sum(text.startswith("Story") for text in done.texts) == 2
    assert set(REAL) <= set(done.texts)


def test_the_share_is_capped(curate, server):
    server.answer = Author()
    done = curate(REAL[:9], **synthetic(server, rows=50, max_share=0.25))
    assert done.manifest.sources[1].rows == 3  # of 12
    assert "max_share leaves room for 3 of 50 rows" in done.stages["synthetic"].notes
    with pytest.raises(DataError, match=r"synthetic\.max_share: leaves room for no row"):
        curate(REAL[:9], **synthetic(server, max_share=0.05))


def test_the_budget_ends_the_writing(curate, server):
    server.answer = Author()
    done = curate(REAL, **synthetic(server, by={"budget": {"tokens": 400}}, max_new_tokens=200, min_score=0))
    stage = done.stages["synthetic"]
    assert 0 < stage.rows_out < 8
    assert stage.notes == [
        f"the budget sufficed for {stage.rows_out} of 8 rows",
        f"served at {server.url}: {15 * stage.rows_out} tokens",
    ]


def test_collapsed_rows_stop_the_run(curate, server, tmp_path):
    real = [" ".join(random.Random(number).choices(SUBJECTS, k=12)) for number in range(90)]
    server.answer = Author(*[f"Once upon a time there was a king who had all the gold of land {n}" for n in range(20)])
    with pytest.raises(DataError, match=r"the rows have collapsed: \d+% of runs of three words are distinct, \d+% in"):
        curate(real, near_duplicates={"bands": 1, "rows": 100}, **synthetic(server, rows=20))
    assert not list((tmp_path / "prepared").glob("[!.]*"))


def test_terms_are_compared_and_refused_words_remove_a_row(curate, server):
    server.answer = Author(
        *[f"Then {n} birds and he saw {n * 3} big ships" for n in range(12)], "A damned story of ships."
    )
    done = curate(REAL, **synthetic(server, rows=16, refuse=["Damned"]))
    assert done.stages["synthetic"].reasons == {"holds a refused word": 1}
    told = done.stages["synthetic.diversity"].notes
    assert told[1] == "women: in 0% of synthetic rows, 0% of training rows"
    assert told[2].startswith("men: in ")
    assert told[2].endswith("0% of training rows, which is a shift")


def test_a_server_that_fails_half_way_is_asked_for_the_rest_alone(curate, server, tmp_path):
    whole, down = Author(), (503, "down")
    server.answer = lambda prompt: down if len(server.asked) > 7 else whole(prompt)
    with pytest.raises(ModelError, match="answers 503"):
        curate(REAL, **synthetic(server))
    assert not list((tmp_path / "prepared").glob("[!.]*"))
    answered = 7
    server.asked.clear()
    server.answer = whole
    again = curate(REAL, **synthetic(server))
    assert len(server.asked) == 16 - answered
    assert again.manifest.sources[1].rows == 8
    assert again.stages["synthetic"].notes == [f"served at {server.url}: {15 * 16} tokens"]


def test_a_model_here_writes_and_training_draws_as_without_it(curate, tiny_llama_dir):
    import torch

    torch.manual_seed(3)
    before = torch.get_rng_state()
    options = {"rows": 4, "min_score": 0, "max_new_tokens": 16, "temperature": 1.0, "seeds": 1, "min_diversity": 0}
    options["templates"] = ["Write one."]
    done = curate(REAL, model=str(tiny_llama_dir), synthetic=options)
    assert torch.equal(torch.get_rng_state(), before)
    assert done.manifest.sources[1].path == str(tiny_llama_dir)
    first = done.texts
    for path in (done.done.folder, done.done.folder.with_name(".models.sqlite")):
        (path / "manifest.json").unlink() if path.is_dir() else path.unlink()
    assert curate(REAL, model=str(tiny_llama_dir), synthetic=options).texts == first


def test_a_prompt_beyond_the_positions_of_a_model_here_is_told(curate, tiny_llama_dir):
    with pytest.raises(ModelError, match=r"has 512 positions; the prompt has .* Ask another model"):
        curate(REAL, model=str(tiny_llama_dir), synthetic={"rows": 2})


def test_kinds_that_nobody_writes_are_refused(curate, server, tmp_path):
    rows = [{"prompt": "1?", "chosen": "a", "rejected": "b"}] * 3
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"data\.pipeline\.synthetic: writes chats, prompts with completions, and texts"
    ):
        curate(sources=[{"path": str(path)}], objective="dpo", **synthetic(server))
