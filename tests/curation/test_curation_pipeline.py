"""From raw sources to a data set: the stages in order, its manifest, restarts, what `train` reads."""

import io
import json
import re
import shutil
import time

import pytest
from made_curation import lines, recipe_of
from rich.console import Console

from hf_efficient.curation import pipeline
from hf_efficient.data.examples import NotPreparedError, recipe_sources
from hf_efficient.errors import DataError
from hf_efficient.reporting import prepared as words

TEN = [f"text number {number}" for number in range(10)]


def test_copies_and_empty_rows_go_and_the_first_of_equal_rows_stays(curate):
    done = curate(["one  \r\n", "two", "one", "", "three\x00", "two"])
    assert done.kept == ["one", "two", "three"]
    assert done.stages["read"].reasons == {"empty": 1}
    assert done.stages["normalise"].changed == 2
    assert done.stages["exact_duplicates"].reasons == {"an exact copy": 2}
    assert [one.where.rpartition(":")[2] for one in done.stages["exact_duplicates"].removed] in (["3", "6"], ["6", "3"])
    assert done.column("source") == [done.manifest.sources[0].key + f" ({done.manifest.sources[0].path})"] * 3
    assert sorted(done.column("tokens")) == [4, 4, 6]  # a byte is a token, and one ends the text
    assert done.manifest.rows == 3
    assert done.manifest.tokens == 14


def test_each_stage_hands_its_rows_to_the_next(curate):
    stages = curate([*TEN, *TEN], length={"min_characters": 3}).manifest.stages
    assert [one.name for one in stages] == ["read", "normalise", "length", "exact_duplicates", "blend"]
    assert [one.rows_out for one in stages[:-1]] == [one.rows_in for one in stages[1:]]
    assert [one.tokens_out for one in stages[:-1]] == [one.tokens_in for one in stages[1:]]


def test_a_data_set_that_is_there_is_not_made_again(curate):
    first = curate(TEN)
    again = curate(TEN)
    assert (first.done.fresh, again.done.fresh) == (False, True)
    assert again.heard.begun == []
    assert again.done.folder == first.done.folder


@pytest.mark.parametrize("change", [{"length": {"min_characters": 2}}, {"seed": 1}])
def test_other_options_make_another_version(curate, change):
    first, other = curate(TEN), curate(TEN, **change)
    assert other.done.folder != first.done.folder
    assert first.done.folder.is_dir()


def test_other_rows_make_another_version(curate):
    assert curate(TEN).done.folder != curate(TEN[1:]).done.folder


def test_the_order_is_shuffled_and_fixed_by_the_seed(curate, tmp_path):
    first = curate(TEN).texts
    shutil.rmtree(tmp_path / "prepared")
    assert curate(TEN).texts == first
    assert first != TEN
    assert sorted(first) == sorted(TEN)
    assert curate(TEN, seed=1).texts != first


def test_a_killed_run_goes_on_and_keeps_the_same_rows(curate, tmp_path, monkeypatch):
    stages = {"length": {"min_characters": 3}}
    whole = curate([*TEN, *TEN], **stages)
    rows = (whole.done.folder / "train" / "rows.parquet").read_bytes()
    for killed_at in ("write_whole", "encoded", "write_parquet"):
        for call in range(8):
            shutil.rmtree(tmp_path / "prepared")
            real, calls = getattr(pipeline, killed_at), iter(range(100))

            def kill(*args, real=real, calls=calls, call=call):
                if next(calls) == call:
                    raise KeyboardInterrupt
                return real(*args)

            with monkeypatch.context() as patch:
                patch.setattr(pipeline, killed_at, kill)
                try:
                    curate([*TEN, *TEN], **stages)
                except KeyboardInterrupt:
                    assert not list((tmp_path / "prepared").glob("[!.]*"))
            again = curate([*TEN, *TEN], **stages)
            assert (again.done.folder / "train" / "rows.parquet").read_bytes() == rows
            assert not list((tmp_path / "prepared").glob(".work*"))
    done = [one for one in again.manifest.stages if one.name == "exact_duplicates"]
    assert done[0].reasons == {"an exact copy": 10}


def test_a_stage_that_removes_everything_says_so_with_examples(curate, tmp_path):
    with pytest.raises(DataError) as told:
        curate([f"row {number}" for number in range(30)], length={"min_characters": 100})
    said = str(told.value).splitlines()
    assert said[0].startswith("data.pipeline.length: removes all 30 rows that reach it. Change its options, or write")
    assert len(said) == 21
    assert "rows.jsonl:" in said[1]
    assert "fewer than 100 characters" in said[1]
    assert not list((tmp_path / "prepared").glob("[!.]*"))


def test_an_enormous_row_is_left_out_with_the_reason(curate):
    done = curate(["x" * 10_000_001, *TEN, "x" * 50_000_000])
    assert done.stages["read"].reasons == {"more than 10,000,000 characters": 2}
    assert all(len(one.text) < 1000 for one in done.stages["read"].removed)
    assert len(done.texts) == 10


def test_an_empty_source_leaves_nothing_half_written(curate, tmp_path):
    with pytest.raises(DataError, match=r"data\.train\.0\.path: .*rows\.jsonl is empty: it has no rows\."):
        curate([])
    assert not list((tmp_path / "prepared").glob("[!.]*"))


def test_weights_say_how_often_each_row_is_seen(curate, tmp_path):
    sources = [
        {"path": str(lines(tmp_path / "a.jsonl", [f"a{number}" for number in range(40)])), "weight": 2.5},
        {"path": str(lines(tmp_path / "b.jsonl", [f"b{number}" for number in range(1000)])), "weight": 0.3},
    ]
    done = curate(sources=sources)
    texts = done.texts
    assert {texts.count(f"a{number}") for number in range(40)} == {2, 3}
    assert 250 < sum(text.startswith("b") for text in texts) < 350
    assert [one.epochs for one in done.manifest.sources] == [2.5, 0.3]


def test_a_temperature_evens_the_sources_out_and_keeps_the_tokens(curate, tmp_path):
    sources = [
        {"path": str(lines(tmp_path / "a.jsonl", [f"a{number:03}" for number in range(20)]))},
        {"path": str(lines(tmp_path / "b.jsonl", [f"b{number:03}" for number in range(320)]))},
    ]
    first, second = curate(sources=sources, blend={"temperature": 2}).manifest.sources
    # 100 and 1,600 tokens: shares as 100^(1/2) : 1600^(1/2) = 1 : 4, of 1,700 tokens 340 and 1,360
    assert (first.epochs, second.epochs) == pytest.approx((3.4, 0.85))


def test_a_share_is_held_out_and_no_copy_of_it_is_trained_on(curate):
    done = curate([*TEN, *TEN], data={"eval_fraction": 0.2})
    held = done.column("text", "eval")
    assert len(held) == 2
    assert sorted([*held, *done.texts]) == sorted(TEN)
    assert done.stages["held_out"].reasons == {"held out for evaluation": 2}


def test_training_reads_the_prepared_rows_and_asks_for_them_where_they_are_missing(curate, tmp_path):
    made = recipe_of(tmp_path, [{"path": str(lines(tmp_path / "rows.jsonl", TEN))}], {}, eval_fraction=0.2)
    with pytest.raises(NotPreparedError, match=r"data\.pipeline: there is no .*prepared yet\. Run `hf-efficient prep"):
        recipe_sources(made)
    done = curate(TEN, data={"eval_fraction": 0.2})
    train, held = recipe_sources(made)
    assert [row.value["text"] for row in train[0].rows()] == done.texts
    assert len(list(held[0].rows())) == 2
    lines(tmp_path / "rows.jsonl", TEN[1:])
    with pytest.raises(NotPreparedError, match=r"prepared holds no data set of these sources and options\."):
        recipe_sources(made)


def test_the_manifest_is_json_that_names_what_decided(curate):
    done = curate(TEN)
    held = json.loads((done.done.folder / "manifest.json").read_text(encoding="utf-8"))
    assert held["facts"]["pipeline"]["exact_duplicates"] == {"fold": False}
    assert held["key"].startswith(done.done.folder.name)
    assert {"hf_efficient", "pyarrow"} <= set(held["versions"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            '{"text": "fine"}\n{"text": "sch\xf6n"}\n'.encode("latin-1"),
            r"rows\.jsonl:2: not UTF-8 .* Save the file as UTF-8",
        ),
        ('{"text": "fine"}\n'.encode("utf-16"), "It looks like UTF-16"),
        (b"\x7fELF\x02\x01\x01\x00\x00\n", r"rows\.jsonl:1: not valid JSON"),
    ],
    ids=["latin-1", "utf-16", "binary"],
)
def test_a_source_in_another_encoding_is_named_with_its_row(curate, tmp_path, content, told):
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=told):
        curate(sources=[{"path": str(tmp_path / "rows.jsonl")}])
    assert not list((tmp_path / "prepared").glob("[!.]*"))


def test_a_binary_file_in_a_folder_of_texts_is_named(curate, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text("fine", encoding="utf-8")
    (folder / "b.txt").write_bytes(b"PK\x00\x00")
    with pytest.raises(DataError, match=r"b\.txt: holds zero bytes, so it is no text\. Take the file away"):
        curate(sources=[{"path": str(folder)}])
    assert not list((tmp_path / "prepared").glob("[!.]*"))


def test_an_evaluation_set_that_is_the_training_set_is_told(curate, tmp_path):
    path = str(lines(tmp_path / "rows.jsonl", TEN))
    with pytest.raises(DataError, match=r"contamination: removes all 10 rows .* Are the evaluation data the training"):
        curate(TEN, data={"eval": [{"path": path}]})
    assert not list((tmp_path / "prepared").glob("[!.]*"))


def test_a_terminal_shows_how_much_of_a_stage_is_done_and_a_line_for_each_that_is(curate, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(words, "Console", lambda **_: Console(file=out, force_terminal=True, width=100))
    done = curate(TEN).stages["read"]
    with words.stage_bars() as tell:
        tell("read to length", 0, None, None)
        for rows, total in ((50, None), (60, 400)):
            tell("read to length", rows, total, None)
            time.sleep(0.3)  # it is drawn ten times a second
        tell("read", 10, 10, done)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "50/?" in shown
    assert "60/400" in shown
    assert "read: 10 of 10 rows (" in shown
