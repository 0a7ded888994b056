"""Sources in parts: every row once and in order, and the same data set from parts, tasks and restarts."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_curation import lines, recipe_of

from hf_efficient.curation import parts
from hf_efficient.curation.funnel import StageCount
from hf_efficient.curation.pipeline import prepare
from hf_efficient.curation.rows import Gone, Row
from hf_efficient.data.sources import open_source
from hf_efficient.errors import DataError, SetupError
from hf_efficient.recipe.schema import SourceSection

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TEXTS = [f"text {number} {'x' * (number % 13)}" for number in range(100)]


def jsonl(folder):
    lines(folder / "b.jsonl", TEXTS[:60])
    (folder / "b.jsonl").write_text((folder / "b.jsonl").read_text().replace("\n", "\n\n", 5))
    lines(folder / "a.jsonl", TEXTS[60:])
    (folder / "a.jsonl").write_text((folder / "a.jsonl").read_text().rstrip("\n"))


def parquet(folder):
    pq.write_table(pa.table({"text": TEXTS}), folder / "a.parquet", row_group_size=7)


def csv(folder):
    (folder / "a.csv").write_text("text\n" + "".join(f'"{text}\nsecond line"\n' for text in TEXTS))


def documents(folder):
    for number, text in enumerate(TEXTS[:9]):
        (folder / f"{number}.txt").write_text(text if number else "")


def saved(folder):
    import datasets

    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(str(folder))


@pytest.mark.parametrize("write", [jsonl, parquet, csv, documents, saved])
@pytest.mark.parametrize("size", [1, 100, 300, 1_000_000])
def test_pieces_hold_every_row_once_in_order_with_its_place(tmp_path, write, size):
    write(tmp_path)
    source = open_source(SourceSection(path=str(tmp_path)), "data.train.0")
    whole = list(source.rows())
    pieces = list(source.pieces(size))
    assert [row for piece in pieces for row in source.piece(piece)] == whole
    if size == 100 and write in (jsonl, parquet, saved):
        assert 8 <= len(pieces) <= 60


def test_small_files_share_a_part_and_a_large_one_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_PART_BYTES", 1000)
    documents(tmp_path)
    big = lines(tmp_path / "big.jsonl", TEXTS)
    made = recipe_of(tmp_path, [{"path": str(big)}], {})
    assert len(parts.parts_of(parts.open_train(made))) == pytest.approx(big.stat().st_size / 1000, abs=1)
    big.unlink()
    assert len(parts.parts_of(parts.open_train(recipe_of(tmp_path, [{"path": str(tmp_path)}], {})))) == 1


def test_a_funnel_is_the_sum_of_those_of_its_parts():
    rows = [Row(f"{number:x}", 0, f"f:{number}", number, {"text": f"text {number}"}) for number in range(300)]
    judged = [Gone("odd", f"{row.tokens}") if row.tokens % 2 else row for row in rows]
    whole, first, second = (StageCount("length") for _ in range(3))
    whole.add(rows, judged)
    first.add(rows[:90], judged[:90])
    second.add(rows[90:], judged[90:])
    first.join(second)
    assert first.funnel() == whole.funnel()
    assert whole.funnel().reasons == {"odd": 150}
    assert len(whole.funnel().kept) == 20


@pytest.mark.parametrize("size", [1, 200, 1500])
def test_the_data_set_does_not_depend_on_how_the_sources_were_cut(curate, monkeypatch, tmp_path, size):
    texts = [*TEXTS, *TEXTS[:30], "", "mail me@example.org"]
    whole = curate(texts, length={"min_characters": 8}, private_data={})
    told = [(one.name, one.rows_out, one.tokens_out, one.reasons, one.kept) for one in whole.manifest.stages]
    rows = (whole.done.folder / "train/rows.parquet").read_bytes()
    (whole.done.folder / "manifest.json").unlink()
    monkeypatch.setattr(parts, "_PART_BYTES", size)
    cut = curate(texts, length={"min_characters": 8}, private_data={})
    assert (cut.done.folder / "train/rows.parquet").read_bytes() == rows
    assert [(one.name, one.rows_out, one.tokens_out, one.reasons, one.kept) for one in cut.manifest.stages] == told


def test_an_executor_makes_no_other_version_and_its_options_are_checked(tmp_path, tiny_tokenizer):
    pytest.importorskip("datatrove")
    sources = [{"path": str(lines(tmp_path / "rows.jsonl", TEXTS))}]
    here = prepare(recipe_of(tmp_path, sources, {}), tiny_tokenizer, lambda *_: None)
    by_tasks = recipe_of(tmp_path, sources, {"executor": {"kind": "slurm", "tasks": 2}})
    assert prepare(by_tasks, tiny_tokenizer, lambda *_: None).fresh
    (here.folder / "manifest.json").unlink()
    with pytest.raises(SetupError, match=r"^data\.pipeline\.executor\.options: .*SlurmPipelineExecutor.*'partition'"):
        prepare(by_tasks, tiny_tokenizer, lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "ray"])
def test_tasks_of_an_executor_tell_a_fault_and_leave_the_same_rows(tmp_path, tiny_tokenizer, monkeypatch, capfd, kind):
    pytest.importorskip("datatrove")
    if kind == "ray":
        pytest.importorskip("ray")
    monkeypatch.setattr(parts, "_PART_BYTES", 500)
    good, bad = lines(tmp_path / "a.jsonl", [*TEXTS, *TEXTS]), tmp_path / "b.jsonl"
    bad.write_text(json.dumps({"text": "a row"}) + "\n{not JSON}\n")
    stages = {"length": {"min_characters": 8}}
    executor = {"executor": {"kind": kind, "tasks": 3, "workers": 2}}
    broken = recipe_of(tmp_path, [{"path": str(good)}, {"path": str(bad)}], {**stages, **executor})
    with pytest.raises(DataError, match=r"^.*b\.jsonl:2: not valid JSON"):
        prepare(broken, tiny_tokenizer, lambda *_: None)
    whole = prepare(recipe_of(tmp_path, [{"path": str(good)}], stages), tiny_tokenizer, lambda *_: None)
    rows = (whole.folder / "train/rows.parquet").read_bytes()
    (whole.folder / "manifest.json").unlink()
    heard = []
    made = recipe_of(tmp_path, [{"path": str(good)}], {**stages, **executor})
    again = prepare(made, tiny_tokenizer, lambda *told: heard.append(told))
    assert (again.folder / "train/rows.parquet").read_bytes() == rows
    assert again.manifest.rows == whole.manifest.rows
    assert [told[1] == told[2] for told in heard if told[0] == "parts, read to length"][-1] is True
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if "points to a local filesystem" not in line] == []  # datatrove's, of Ray


@pytest.mark.slow
def test_runs_that_are_killed_at_random_moments_leave_the_same_rows(tmp_path, tiny_tokenizer, monkeypatch):
    pytest.importorskip("datatrove")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    from curation_kills import killed_runs, write_rows

    sources = write_rows(tmp_path, 2000)
    told = killed_runs(tmp_path, tiny_tokenizer, sources, 3, random.Random(0), bytes_of_part=50_000)
    assert told["four tasks as one process"]
    assert [one["same"] for one in told["kills"]] == [True] * 3
    assert not any(one["half_written"] for one in told["kills"])
