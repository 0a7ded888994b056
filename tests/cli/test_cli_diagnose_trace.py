"""``diagnose_trace``: a trace in, print or JSON out."""

from __future__ import annotations

import json

import pytest

from hf_efficient.cli.diagnose import diagnose_trace
from hf_efficient.errors import OutputError

TRACE = {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 10, "dur": 5}]}


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE), encoding="utf-8")
    return path


def test_it_prints(trace, capsys):
    diagnose_trace(trace, as_json=False)
    assert "computing" in capsys.readouterr().out


def test_it_gives_json(trace, capsys):
    diagnose_trace(trace, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["devices"][0]["busy"]["busy_seconds"] == 5e-6


def test_what_is_no_trace_is_an_error_of_the_user(tmp_path):
    with pytest.raises(OutputError, match="cannot be read"):
        diagnose_trace(tmp_path / "none.json", as_json=False)
