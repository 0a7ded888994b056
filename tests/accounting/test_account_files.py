from __future__ import annotations

import json

import jsonschema
import pytest
from test_account_build import end, lines, process, span, step, train
from test_account_series import full_step

from hf_efficient.accounting.account import account_of, read_account, write_account
from hf_efficient.accounting.json_schema import SHIPPED, run_schema
from hf_efficient.errors import OutputError
from hf_efficient.records.steps import SequenceCounts
from hf_efficient.run_dir.json_file import strict_json


@pytest.fixture
def run(tmp_path):
    lines(tmp_path / "spans.jsonl", process(), span(0.0, imports=2.0), train(0, 2.0), end(4.0))
    lines(tmp_path / "steps.jsonl", step(1, 0.0, 1.0, forward=1.0))
    return tmp_path


def test_the_shipped_schema_is_the_one_of_the_records():
    assert json.loads(SHIPPED.read_text(encoding="utf-8")) == run_schema()


def test_written_whole_read_back_and_valid(run):
    (run / "run.json").write_text("{")
    write_account(run, account_of(run))
    assert sorted(path.name for path in run.iterdir()) == ["run.json", "spans.jsonl", "steps.jsonl"]
    text = (run / "run.json").read_text(encoding="utf-8")
    assert text == strict_json(account_of(run))
    assert read_account(run / "run.json") == account_of(run)
    jsonschema.validate(json.loads(text), run_schema())


@pytest.mark.parametrize(
    "change", [{"ended": "perhaps"}, {"schema_version": "1"}, {"more": 1}, {"time": None}], ids=lambda c: next(iter(c))
)
def test_the_schema_refuses(run, change):
    write_account(run, account_of(run))
    data = json.loads((run / "run.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, **change}, run_schema())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "run.json: cannot be read: Input data was truncated"),
        ('{"schema_version": 3}', "run.json: schema_version 3 is newer than 2, which is read here: upgrade"),
        (
            '{"schema_version": 2}',
            "run.json: is not the account of a run: Object missing required field",
        ),
    ],
)
def test_what_is_no_account(tmp_path, text, told):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(OutputError) as caught:
        read_account(tmp_path / "run.json")
    assert str(caught.value).startswith(f"{tmp_path}/{told}")


def test_a_long_run_has_a_small_account(tmp_path):
    """20,000 steps on four ranks in three processes, an evaluation after every tenth, many lengths."""
    count = 20_000
    for number in range(3):
        lines(tmp_path / "spans.jsonl", process(number), train(number, 2.0, number))
        lines(tmp_path / "spans.jsonl", *[evaluation(number, at) for at in range(0, count // 3, 10)], end(90.0, number))
    for rank in range(4):
        name = "steps.jsonl" if rank == 0 else f"steps.rank{rank}.jsonl"
        records = [
            full_step(at, at - 1.0, 1.0, rank=rank, segment=3 * at // (count + 1), sequences=lengths(at))
            for at in range(1, count + 1)
        ]
        lines(tmp_path / name, *records)
    write_account(tmp_path, account_of(tmp_path))
    account = read_account(tmp_path / "run.json")
    assert (account.steps.count, len(account.time.processes), len(account.ranks)) == (count, 3, 4)
    assert (tmp_path / "run.json").stat().st_size < 64 * 1024


def evaluation(number, at):
    metrics = dict.fromkeys(("loss", "perplexity", "mean_token_accuracy", "exact_match", "runtime"), at / 7)
    return {"kind": "evaluation", "at_seconds": 3.0, "step": at, "metrics": metrics, "seconds": 0.5, "process": number}


def lengths(at):
    return SequenceCounts(2, 2, 1, at, {str(2 ** (at % 18)): 2})
