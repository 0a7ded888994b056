"""``hf-efficient report`` on records, on run.json alone, and on nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WORK = {
    "dtype": "bf16",
    "peak_flops_per_second": 3e12,
    "peak_source": "a matmul measured here: 512 x 512, 1 thread, 2026-01-02",
    "peak_estimated": True,
    "peak_reason": None,
    "accelerators": 2,
    "reason": None,
    "hardware_reason": None,
}


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "out" / "efficiency"
    folder.mkdir(parents=True)
    spans = [
        {
            "kind": "process",
            "schema_version": 1,
            "process": 0,
            "rank": 0,
            "pid": 1,
            "way": "recipe",
            "process_start_from": "kernel",
            "began_at_seconds": 0.0,
        },
        {
            "kind": "span",
            "process": 0,
            "started_at_seconds": 0.0,
            "wall_seconds": 2.0,
            "phase_seconds": {"imports": 2.0},
        },
        {"kind": "train", "process": 0, "segment": 0, "at_seconds": 2.0},
        {"kind": "facts", "process": 0, "facts": {"work": WORK, "data": {"fill_rate": 0.875, "packs": 10}}},
    ]
    steps = [
        {
            "schema_version": 1,
            "segment": 0,
            "rank": 0,
            "step": number,
            "epoch": None,
            "wall_seconds": 1.0,
            "started_at_seconds": number - 1.0,
            "phase_seconds": {"forward": 0.75},
            "unattributed_seconds": 0.25,
            "micro_batches": 1,
            "tokens": {"processed": 1000, "non_padding": 750, "loss_bearing": 500},
            "sequences": {
                "rows": number,
                "documents": number + 1,
                "shortest": 300 - 100 * number,
                "longest": 200 * number,
                "length_buckets": {str(100 * number): number + 1},
            },
            "work": {"model_flops": 3 * 10**12, "hardware_flops": 4 * 10**12},
            "loss": None,
        }
        for number in (1, 2)
    ]
    (folder / "spans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in spans))
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    return folder.parent


def add(output: Path, **line: object) -> None:
    with (output / "efficiency/spans.jsonl").open("a") as file:
        file.write(json.dumps({"process": 0, "memory": {"peak_rss_bytes": 3 * 2**30}, **line}) + "\n")


def test_the_account_of_a_run_that_ended(run, output):
    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    done = run("report", str(output), "--no-html")
    assert (done.code, done.err) == (0, "")
    assert [line.rstrip() for line in done.out.splitlines()] == [
        "The run took 5.0 s",
        "where the time went       seconds   share",
        "start of Python, imports     2.00   40.0%  ██████████",
        "forward                      1.50   30.0%  ███████",
        "unattributed                 1.50   30.0%  ███████",
        "in all                       5.00  100.0%",
        "steps      2: p50 1.00 s, p95 1.00 s, p99 1.00 s, without 1 of warm-up; the first was done 3.0 s after the "
        "start",
        "tokens     2,000 processed, 1,500 without padding, 1,000 bear loss, 25% padding, "
        "750 per second without padding in the",
        "           training loop",
        "sequences  5 in 3 rows, 2.5 per second in the training loop, 300 tokens each (100 to 400), packs 87.5% full",
        "work       6 TFLOPs (8 TFLOPs computed), MFU 50% (HFU 66.7%) of 2 x 3 TFLOP/s (bf16, a matmul measured here)",
        "memory     3.00 GiB at most in the host's memory",
        "energy     not known",
        "money      not known",
        "Not measured:",
        "  the launcher: it runs before this process starts; its time is in no record",
        "  the interpreter's own end: Python takes itself down after the last record that a run can write",
        "  energy: no meter was read",
        "  cost: the records state no price",
        "",
        "Nothing to fix.",
        "The limit that it is at: none is told of 2 steps: they are too few.",
        "1. 25% of the positions that are computed are padding  [info, possible: padding_waste]",
        "   costs 0.4 s",
        "Evidence, other remedies, what was not judged: hf-efficient diagnose",
        str(output),
    ]
    assert run("report", str(output / "efficiency"), "--no-html").out == done.out


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"peak_flops_per_second": None, "peak_reason": "the peak of 'X' is not known here"},
            "work       6 TFLOPs (8 TFLOPs computed), MFU n/a: the peak of 'X' is not known here",
        ),
        ({"dtype": "tf32", "accelerators": 1}, "MFU 100% (HFU 133%) of 3 TFLOP/s (tf32, a matmul measured here)"),
    ],
)
def test_what_is_known_of_the_work(run, output, changed, told):
    add(output, kind="facts", facts={"work": {**WORK, **changed}})
    assert told in run("report", str(output)).out


def test_flops_that_are_not_known_say_why(run, output):
    add(output, kind="facts", facts={"work": {**WORK, "reason": "no such model"}})
    path = output / "efficiency/steps.jsonl"
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**step, "work": None, "sequences": None}) + "\n" for step in steps))
    lines = [line.rstrip() for line in run("report", str(output)).out.splitlines()]
    assert "work       n/a: no such model" in lines
    assert "  FLOPs, MFU and HFU: no such model" in lines
    assert "sequences  packs 87.5% full" in lines


METERS = {
    name: {"id": name, "machine": "m", "source": source, "unit": "joules", "note": note}
    for name, source, note in (("GPU 0", "nvml", "energy counter"), ("CPU", "estimate", "by table"))
}


def sample(at: float, **joules: float) -> dict[str, object]:
    return {"schema_version": 1, "process": 0, "at_seconds": at, "joules": joules}


def test_energy_and_money(run, output):
    add(output, kind="facts", facts={"price": {"price_usd_per_hour": 720, "source": "by hand", "estimated": False}})
    add(output, kind="facts", facts={"grid": {"grams_per_kwh": 500.0, "source": "Utopia 2023"}})
    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    samples = [
        {**sample(0.0, **{"GPU 0": 0.0, "CPU": 0.0}), "meters": METERS},
        sample(5.0, **{"GPU 0": 27000.0, "CPU": 9000.0}),
    ]
    (output / "efficiency/system.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    lines = [line.rstrip() for line in run("report", str(output), "--no-html").out.splitlines()]
    # 36,000 J = 0.01 kWh, times 500; 5 s at 720 an hour; 1,500 tokens
    start = lines.index(next(line for line in lines if line.startswith("energy")))
    assert lines[start : lines.index("")] == [
        "energy     0.01 kWh (in part estimated): CPU 0.0025 kWh, GPU 0 0.0075 kWh; 5 g CO2e at 500 g/kWh (Utopia "
        "2023)",
        "money      $1.00 at $720.00/h (by hand); $666.67 per million tokens without padding",
        "Not measured:",
        "  the launcher: it runs before this process starts; its time is in no record",
        "  the interpreter's own end: Python takes itself down after the last record that a run can write",
        "  measured energy of CPU: it is estimated: by table",
    ]


def test_starts_at_different_prices(run, output):
    """5 s at 720 an hour, then 10 s at 360."""
    add(output, kind="facts", facts={"price": {"price_usd_per_hour": 720, "source": "by hand", "estimated": False}})
    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    other = {"price_usd_per_hour": 360, "source": "b", "estimated": False}
    add(output, kind="facts", process=1, facts={"price": other})
    add(output, kind="end", process=1, ended="done", error=None, at_seconds=10.0)
    told = " ".join(run("report", str(output), "--no-html").out.split())
    assert "$2.00 at $360.00 to $720.00/h (each start at its own; the last at $360.00/h, b); " in told


def test_a_run_that_was_killed_says_so(run, output):
    add(
        output,
        kind="alive",
        at_seconds=7.5,
        started_at_seconds=4.0,
        open_phase="evaluation",
        phase_seconds={"evaluation": 3.0},
    )
    done = run("report", str(output))
    assert done.code == 0
    assert done.out.startswith("The run did not end: its last sign is 7.5 s after its start, in evaluation")
    assert "  the end of the run: the process left no end: it was killed, or it is still running" in done.out


def test_a_run_that_failed_says_so(run, output):
    add(output, kind="end", ended="error", error="ValueError: [no]", at_seconds=5.0)
    assert run("report", str(output)).out.startswith("The run failed after 5.0 s: ValueError: [no]")


def test_json_is_that_of_run_json_which_is_enough(run, output):
    from hf_efficient.accounting.account import account_of, write_account

    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    write_account(output / "efficiency", account_of(output / "efficiency"))
    text = (output / "efficiency/run.json").read_text()
    assert run("report", str(output), "--json").out == text
    for name in ("steps.jsonl", "spans.jsonl"):
        (output / "efficiency" / name).unlink()
    assert run("report", str(output), "--json").out == text


def test_what_is_no_run(run, tmp_path):
    done = run("report", str(tmp_path / "gone"))
    assert (done.code, done.err) == (2, f"error: {tmp_path / 'gone'}: no such folder; name the OUTPUT_DIR of a run\n")
    done = run("report", str(tmp_path))
    assert done.code == 2
    assert done.err.startswith(f"error: {tmp_path}: holds no records of a run")
