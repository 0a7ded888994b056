from __future__ import annotations

import logging

import pytest

from hf_efficient.accounting.plan import profile_account
from hf_efficient.accounting.processes import ProcessSpans
from hf_efficient.records.profile import InstrumentAccount, OperatorTable, OperatorTime
from hf_efficient.run_dir.json_file import PROFILE, table_path, write_table

TABLE = OperatorTable(0, 3, 1.5, 0.9, None, [OperatorTime("aten::mm", 6, 0.5, None, 96, "[2, 3] [3, 8]")], 4)


TOLD = {"cost_seconds": 2.0, "own_seconds": 1.5, "steps": 3, "files": ["profile/operators.rank0.json"], "note": "n"}


def processes(*facts):
    return [ProcessSpans(number, facts=told) for number, told in enumerate(facts)]


@pytest.fixture
def table(tmp_path):
    (tmp_path / PROFILE).mkdir()
    path = table_path(tmp_path / PROFILE, "operators", 0)
    write_table(path, TABLE)
    return path


def test_facts_and_tables_of_the_last_process_that_had_instruments(table, tmp_path):
    found = profile_account(processes({"profile": {"old": TOLD}}, {"profile": {"trace": TOLD}}, {}), tmp_path)
    assert found.instruments == [InstrumentAccount("trace", 2.0, 1.5, 3, ["profile/operators.rank0.json"], "n")]
    assert found.operators == TABLE
    assert [path.name for path in (tmp_path / PROFILE).iterdir()] == ["operators.rank0.json"]


def test_a_half_written_table_is_left_out_and_said(table, tmp_path, caplog):
    table.write_text(table.read_text()[:40])
    with caplog.at_level(logging.WARNING):
        assert profile_account(processes({"profile": {"trace": TOLD}}), tmp_path).operators is None
    assert "operators.rank0.json: cannot be read, so that it is left out" in caplog.text


def test_a_table_of_an_earlier_run_in_the_folder_is_not_this_ones(table, tmp_path):
    found = profile_account(processes({"profile": {"memory": {**TOLD, "files": []}}}), tmp_path)
    assert found.operators is None
