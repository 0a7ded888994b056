import gzip
import json

from trace_reading import write_repeated

from hf_efficient.trace.breakdown import trace_breakdown

EVENTS = [
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 1000, "dur": 500},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1100, "dur": 5,
     "args": {"correlation": 4}},
    {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2000, "dur": 50,
     "args": {"device": 0, "stream": 7, "correlation": 4}},
]  # fmt: skip


def test_events_go_on_later(tmp_path):
    source, target = tmp_path / "small.json.gz", tmp_path / "large.json"
    source.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}).encode()))
    count = write_repeated(source, target, 1000)
    told = json.loads(target.read_text())
    assert len(told["traceEvents"]) == 3 * count
    assert target.stat().st_size >= 1000
    # 1000 to 2000, a thousandth more, and one: 1002 later each time; the next correlation is 5, the next step 4.
    second = told["traceEvents"][3:6]
    assert [event["ts"] for event in second] == [2002, 2102, 3002]
    assert [second[1]["args"]["correlation"], second[2]["args"]["correlation"]] == [9, 9]
    assert second[0]["name"] == "ProfilerStep#7"
    busy = trace_breakdown(target).devices[0].busy
    assert round(busy.busy_seconds * 1e6) == 50 * count
