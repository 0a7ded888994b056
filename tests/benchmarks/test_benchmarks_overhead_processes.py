import json

import overhead_arms
import pytest
from overhead_arms import train_in_process

ECHO = """
import json, sys
case, arm, skip, steps, result = sys.argv[1:]
json.dump({"case": case, "arm": arm, "skip": skip, "steps": steps}, open(result, "w"))
"""
FAILS = "import sys; print('what went wrong'); sys.exit(3)"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Stands in for the script that trains."""
    path = tmp_path / "script.py"
    monkeypatch.setattr(overhead_arms, "_SCRIPT", path)
    return path


def test_a_process_that_fails_says_how(script):
    script.write_text(FAILS)
    with pytest.raises(RuntimeError, match=r"the process of plain ended with 3: what went wrong"):
        train_in_process("tiny", "plain", 20, 100)


def test_steps_that_traceml_did_not_trace_are_no_measurement(script, monkeypatch):
    # The stand-in writes the block, and a summary of 119 of the 120 steps where TraceML leaves its own.
    summary = json.dumps({"step_time": {"metadata": {"training_total_steps": 119}}})
    script.write_text(
        ECHO
        + "from pathlib import Path\n"
        + "logs = Path(result).with_name('logs') / 'overhead'\nlogs.mkdir(parents=True)\n"
        + f"(logs / 'final_summary.json').write_text({summary!r})\n"
    )
    monkeypatch.setattr(overhead_arms, "_traceml", lambda arm, logs, script: [overhead_arms.sys.executable, *script])
    with pytest.raises(RuntimeError, match="TraceML traced 119 of 120 steps"):
        train_in_process("tiny", "traceml", 20, 100)
