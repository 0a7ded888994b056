"""The first GPU's script: its parts in their time, one that cannot run named, and their figures by hand."""

import json
import time

import first_gpu
import pytest
from first_gpu import PARTS, Part, run_part


def part(code, seconds=60, needs=(), told=lambda found: f"is {found['figure']}"):
    return Part("one", "a try", seconds, ("-c", code), (), told, needs)


def test_the_parts_fit_25_minutes():
    assert sum(one.seconds for one in PARTS) <= 25 * 60
    assert len({one.name for one in PARTS}) == len(PARTS)


def test_a_part_that_prints_and_one_that_writes(tmp_path):
    printed = run_part(part("print('{\"figure\": 3}')"), tmp_path, 60, tiny=False)
    assert (printed["told"], printed["left_out"], printed["found"]) == ("is 3", "", {"figure": 3})
    write = Part("two", "", 60, ("-c", "import sys; open(sys.argv[1], 'w').write('{}')", "$JSON"), (), str, ())
    assert run_part(write, tmp_path, 60, tiny=False)["told"] == "{}"


def test_why_a_part_is_left_out(tmp_path):
    begun = time.monotonic()
    slow = part("import time; print('{\"figure\": 4}', flush=True); time.sleep(60)")
    stopped = run_part(slow, tmp_path, 1.5, tiny=False)
    assert stopped["left_out"] == "stopped after 2 s"
    assert stopped["told"] == "is 4"  # what it had by then
    assert time.monotonic() - begun < 30
    assert run_part(part("raise SystemExit('no room')"), tmp_path, 60, tiny=False)["left_out"] == "failed: no room"
    missing = run_part(part("", needs=("no_such_module",)), tmp_path, 60, tiny=False)
    assert missing["left_out"] == "left out: no_such_module is not installed"
    assert run_part(part(""), tmp_path, -1, tiny=False)["left_out"] == "left out: no time left"


def test_figures_by_hand():
    rates = {"calibrations": [{"matmul": [rate("fp32", 9e14), rate("bf16", 7e14)], "bandwidth_bytes_per_second": 3e12}]}
    assert first_gpu._rates(rates) == "bf16 700.0 TFLOP/s, memory 3,000 GB/s"
    none = {"cases": 0}
    plans = {
        "found": [{"measured": {}, "predicted": {}}, {"measured": None, "predicted": {}}],
        "allocated_bytes": {"cases": 1, "median_error": 0.01, "worst_error": 0.02},
        "reserved_bytes": none,
        "tokens_per_second": none,
    }
    assert first_gpu._errors(plans) == "2 cases, 1 failed; allocated 1.0% (worst 2.0%)"
    arms = [arm("trl", 1000.0), arm("recipe", 1500.0, mfu=0.5), arm("bare", None, reason="needs a GPU")]
    told = first_gpu._arms({"base": "trl", "arms": arms})
    assert told == "trl 1,000 tokens/s; recipe 1,500 tokens/s, 1.50 times, MFU 50.0%; bare needs a GPU"
    ratio = {"ratio": {"median": 1.001, "low": 0.999, "high": 1.003}}
    case = {"in_one_process": {"comparisons": [ratio]}, "synchronisations": {"added": {"here": 2}}}
    told = first_gpu._overhead({"cases": [case]})
    assert told == "ratio 1.0010 (0.9990 to 1.0030); waits for the device that it adds: 2"


def rate(dtype, flops):
    return {"dtype": dtype, "flops_per_second": flops}


def arm(name, speed, *, mfu=None, reason=""):
    ratio = None if speed is None else {"median": speed / 1000}
    return {"name": name, "tokens_per_second": speed, "ratio": ratio, "mfu": mfu, "reason": reason}


@pytest.mark.slow
def test_parts_run_on_a_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["first_gpu.py", "--tiny", "--only", "plan_1b,overhead"])
    with pytest.raises(SystemExit):
        first_gpu.main()
    parts = json.loads((tmp_path / "first_gpu.json").read_text())["parts"]
    assert [(one["name"], one["left_out"]) for one in parts] == [("plan_1b", ""), ("overhead", "")]
    assert all(one["told"] for one in parts)
