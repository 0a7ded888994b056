"""What a run says of the data that it was prepared from, and the words for a stage."""

from dataclasses import replace

import msgspec

from hf_efficient.curation.worth import TrainingRate
from hf_efficient.records.prepared import PreparedFacts, PreparedSet, PreparedSource, SampleRow, StageFunnel
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.prepared import funnel_table, stage_line, worth_sentence
from hf_efficient.reporting.run_data import read_run
from hf_efficient.reporting.run_rows import prepared_words


def test_a_run_says_what_its_data_were_prepared_from():
    facts = PreparedFacts("prepared/r/ab", 1000, 800, 50_000, 38_000, 12_000, 4.5)
    kept = "800 of 1,000 rows in prepared/r/ab; 12,000 tokens removed"
    assert prepared_words(facts, None) == kept
    assert prepared_words(facts, 5.0) == f"{kept}, which saves $0.060 an epoch"


def test_a_stage_in_one_line():
    stage = StageFunnel("near_duplicates", 100, 90, 1000, 900, 2.0, 3, {"a near copy": 8, "nothing is left": 2})
    told = "near duplicates: 90 of 100 rows, 3 changed, 10 removed: mostly a near copy (8) (2.0 s)"
    assert stage_line(stage) == told


LENGTH = StageFunnel(
    "length", 10, 8, 1000, 700, 1.0, 0, {"too short": 2}, [SampleRow("a.jsonl:1", "<b>hm</b>", "too short")],
    [SampleRow("a.jsonl:2", "a long text")],
)  # fmt: skip
WRITTEN = StageFunnel("synthetic", 5, 4, 100, 80, 36.0, notes=["served: 900 tokens"], usd=0.25)


def made(*stages):
    sources = [PreparedSource("data.train.0", "a.jsonl", 8, 700, 1.0)]
    return PreparedSet(1, "k", "r", "now", 8, 700, 1.0, sources, list(stages), {}, {})


def test_what_a_server_was_paid_is_a_cost_and_written_rows_save_nothing():
    prepared, rate = made(LENGTH, WRITTEN), TrainingRate(100.0, 3600.0, "as said")
    cost, saves = ([row[place] for row in funnel_table(prepared, rate, whole=True).rows] for place in (6, 7))
    assert cost == ["$1.00", "$36.25"]  # a dollar a second, and 25 cents
    assert saves == ["$3.00", ""]
    assert worth_sentence(prepared, rate).startswith("300 tokens are not trained on, which saves 3.0 s and $3.00")
    told = worth_sentence(prepared, TrainingRate(100.0, None, "as said"))
    assert told.endswith("saves 3.0 s in each epoch (as said); cost.price_usd_per_hour is not set.")
    assert stage_line(WRITTEN) == "synthetic: 4 of 5 rows; served: 900 tokens (36.0 s)"


def test_the_page_of_a_run_shows_the_funnel_with_removed_beside_kept_rows(full_run, tmp_path):
    (tmp_path / "manifest.json").write_bytes(msgspec.json.encode(made(LENGTH, WRITTEN)))
    facts = PreparedFacts(str(tmp_path), 10, 8, 1000, 700, 300, 1.0)
    page = run_page(replace(full_run, prepared=made(LENGTH, WRITTEN)))
    assert page.index("What each stage left") < page.index("too short") < page.index("a long text")
    assert "&lt;b&gt;hm&lt;/b&gt;" in page
    assert "What each stage left" not in run_page(full_run)
    path = tmp_path / "efficiency"
    path.mkdir()
    account = replace(full_run.account, prepared=facts)
    (path / "run.json").write_bytes(msgspec.json.encode(account))
    assert read_run(path).prepared == made(LENGTH, WRITTEN)


def test_a_stage_that_removed_nothing_has_no_empty_column(full_run):
    kept_all = replace(LENGTH, rows_out=10, tokens_out=1000, reasons={}, removed=[])
    assert "a long text" not in run_page(replace(full_run, prepared=made(kept_all)))
    page = run_page(replace(full_run, prepared=made(replace(kept_all, changed=2))))
    assert "Rows kept by" in page
    assert "Rows removed" not in page
    assert "a long text" in page
    assert "Rows removed and rows kept by" in run_page(replace(full_run, prepared=made(LENGTH)))
