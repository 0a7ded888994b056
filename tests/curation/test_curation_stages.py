"""What each stage keeps, changes and removes."""

import pytest

from hf_efficient.errors import DataError, MissingPackageError

LONG = "The mayor opened the new bridge over the river on Sunday, and {} people came to see it before the rain began."
HOUSE = "A house by the sea with {} windows was sold last week to a family who had never seen it, and who paid in cash."


def test_wrong_decoding_is_mended_and_code_keeps_its_indentation(curate):
    done = curate(["schÃ¶n", "def f():\n    return 1   \n"], normalise={})
    assert done.kept == ["schön", "def f():\n    return 1"]


def test_other_languages_go(curate):
    german = "Der Bürgermeister eröffnete am Sonntag die neue Brücke über den Fluss, und viele Leute kamen."
    done = curate([LONG.format("many"), german], language={})
    assert done.texts == [LONG.format("many")]
    assert done.stages["language"].reasons == {"language de": 1}


def test_an_unknown_language_is_answered_with_those_that_are_known(curate):
    with pytest.raises(DataError, match=r"data\.pipeline\.language\.keep: xx is no language that is known\. Known: "):
        curate([LONG], language={"keep": ["xx"]})


@pytest.mark.parametrize(
    ("options", "kept", "why"),
    [
        ({"min_characters": 3}, ["abc", "abcdef"], "fewer than 3 characters"),
        ({"max_characters": 3}, ["ab", "abc"], "more than 3 characters"),
        ({"min_tokens": 4}, ["abc", "abcdef"], "fewer than 4 tokens"),
        ({"max_tokens": 4}, ["ab", "abc"], "more than 4 tokens"),
    ],
)
def test_lengths_are_bounds_that_count_themselves(curate, options, kept, why):
    done = curate(["ab", "abc", "abcdef"], length=options)
    assert done.kept == kept
    assert done.stages["length"].reasons == {why: 1}


def test_folded_copies_differ_in_case_and_spaces_alone(curate):
    done = curate(["One two", "one  TWO", "one three"], exact_duplicates={"fold": True})
    assert done.kept == ["One two", "one three"]


@pytest.mark.parametrize(("keep", "kept"), [("first", LONG.format("many")), ("longest", LONG.format("many") + " Yes.")])
def test_one_of_near_copies_stays(curate, keep, kept):
    texts = [LONG.format("many"), HOUSE.format("nine"), LONG.format("many") + " Yes."]
    done = curate(texts, near_duplicates={"keep": keep, "bands": 28, "rows": 4})
    assert sorted(done.kept) == sorted([HOUSE.format("nine"), kept])
    (gone,) = done.stages["near_duplicates"].removed
    assert gone.why.startswith("a near copy")
    assert ("of " in gone.why and gone.why.endswith("rows.jsonl:1")) == (keep == "first")


def test_private_data_are_replaced_and_stand_in_no_sample(curate):
    done = curate(["Write to ann@example.com today.", "Nothing here."], private_data={"kinds": ["mail"]})
    assert sorted(done.texts) == ["Nothing here.", "Write to [MAIL] today."]
    assert done.stages["private_data"].changed == 1
    assert "ann@example" not in (done.done.folder / "manifest.json").read_text(encoding="utf-8")


def test_rows_with_private_data_are_dropped_on_request(curate):
    texts = ["Write to ann@example.com today.", "Nothing here."]
    done = curate(texts, private_data={"kinds": ["mail"], "action": "drop"})
    assert done.texts == ["Nothing here."]
    assert done.stages["private_data"].reasons == {"holds mail": 1}
    assert "ann@example" not in (done.done.folder / "manifest.json").read_text(encoding="utf-8")


def test_rows_that_share_text_with_evaluation_data_go(curate, tmp_path):
    (tmp_path / "eval.jsonl").write_text(f'{{"text": "{LONG}"}}\n', encoding="utf-8")
    texts = [f"As we heard: {LONG} That was all.", HOUSE]
    done = curate(texts, data={"eval": [{"path": str(tmp_path / "eval.jsonl")}]})
    assert done.texts == [HOUSE]
    (gone,) = done.stages["contamination"].removed
    assert gone.why.startswith("shares text with evaluation data the mayor opened the new bridge")


def test_evaluation_data_that_are_the_training_data_are_refused(curate, tmp_path):
    with pytest.raises(DataError, match=r"contamination: removes all 1 rows .* Are the evaluation data"):
        curate([LONG], data={"eval": [{"path": str(tmp_path / "rows.jsonl")}]})


def test_a_page_becomes_its_text(curate, tmp_path):
    menu = "<nav><a href='/'>Home</a><a href='/a'>About</a></nav>"
    page = (
        f"<!DOCTYPE html><html><body>{menu}<article><h1>Bridge</h1><p>{LONG}</p><p>{HOUSE}</p></article></body></html>"
    )
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "a.html").write_text(page, encoding="utf-8")
    (folder / "b.txt").write_text("A plain text.", encoding="utf-8")
    done = curate(sources=[{"path": str(folder)}])
    plain, main = sorted(done.texts, key=len)
    assert (plain, LONG in main, "About" in main) == ("A plain text.", True, False)
    again = curate([page], normalise={"html": True})
    assert LONG in again.texts[0]
    assert "<p>" not in again.texts[0]
    long = f"<p>{'word ' * 1_000_001}"
    both = curate([page, long], normalise={"html": True})
    assert len(both.texts) == 1
    assert both.stages["normalise"].reasons == {"page too long": 1}


def test_a_missing_package_is_named_with_the_command_that_installs_it(curate, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ftfy", None)
    with pytest.raises(MissingPackageError, match=r"ftfy, for preparing training data, .*'hf-efficient\[curation\]'"):
        curate([LONG], normalise={})


def test_rules_of_web_pages_judge_and_shorten(curate):
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy")
    page = " ".join([LONG.format("many"), HOUSE.format("nine")] * 3).replace("many people", "people who had time")
    sentences = "\n".join(f"{LONG.format(count)}" for count in ("many", "few", "old", "young", "all"))
    done = curate([page, f"Home\n{sentences}\nMenu"], heuristics={"rules": ["c4"]})
    assert f"Home\n{sentences}\nMenu" not in done.texts
    assert sentences in done.texts
    gone = curate(["too short", page], heuristics={"rules": ["gopher_quality"]})
    assert gone.stages["heuristics"].reasons == {"gopher_quality: gopher short doc": 1}
