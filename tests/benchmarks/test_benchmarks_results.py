import datetime
import json
import sys

from shared import write_result


def test_a_result_tells_command_machine_and_versions(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmarks/some.py", "--only", "one two"])
    started = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    write_result(tmp_path / "new" / "some.json", "some", started, {"cases": [1]}, packages=["rich", "no-such-package"])
    told = json.loads((tmp_path / "new" / "some.json").read_text())
    assert told["benchmark"] == "some"
    assert told["command"] == "python benchmarks/some.py --only 'one two'"
    assert told["started_at"] == "2026-01-02T03:04:05+00:00"
    assert told["cases"] == [1]
    assert told["environment"]["versions"]["rich"]
    assert told["environment"]["versions"]["no-such-package"] is None
    assert told["environment"]["memory_bytes"] > 0
