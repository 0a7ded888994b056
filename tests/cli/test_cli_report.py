"""``hf-efficient report``: on records, on run.json alone, of a run that goes on."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from hf_efficient.accounting.account import account_of, write_account
from hf_efficient.cli import report as watches
from hf_efficient.records.trained_model import PairedTest, TaskScore, TaskScores
from hf_efficient.run_dir import paths
from hf_efficient.run_dir.json_file import strict_json
from tests.reporting.sample_run import write_records

WORK = {"dtype": "bf16", "peak_flops_per_second": 3e12, "peak_estimated": True, "accelerators": 2} | {
    "peak_source": "a matmul measured here: 512 x 512, 1 thread, 2026-01-02",
    **dict.fromkeys(("peak_reason", "reason", "hardware_reason")),
}
START = {"kind": "process", "schema_version": 1, "process": 0, "rank": 0, "pid": 1, "way": "recipe"}
START |= {"process_start_from": "kernel", "began_at_seconds": 0.0}


def two_steps():
    for number in (1, 2):
        lengths = {"shortest": 300 - 100 * number, "longest": 200 * number}
        lengths["length_buckets"] = {str(100 * number): number + 1}
        yield {"schema_version": 1, "segment": 0, "rank": 0, "step": number, "epoch": None, "micro_batches": 1} | {
            "wall_seconds": 1.0,
            "started_at_seconds": number - 1.0,
            "phase_seconds": {"forward": 0.75},
            "tokens": {"processed": 1000, "non_padding": 750, "target": 500},
            "sequences": {"rows": number, "documents": number + 1, **lengths},
            "work": {"model_flops": 3 * 10**12, "hardware_flops": 4 * 10**12},
            "loss": None,
        }


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "out" / "efficiency"
    folder.mkdir(parents=True)
    imports = {"started_at_seconds": 0.0, "wall_seconds": 2.0, "phase_seconds": {"imports": 2.0}}
    facts = {"work": WORK, "data": {"fill_rate": 0.875, "packs": 10}}
    write(folder.parent, START)
    add(folder.parent, kind="span", **imports)
    add(folder.parent, kind="train", segment=0, at_seconds=2.0)
    add(folder.parent, kind="facts", facts=facts)
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in two_steps()))
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
        "total                        5.00  100.0%",
        "steps      2: p50 1.00 s, p95 1.00 s, p99 1.00 s, without 1 of warm-up; the first was done 3.0 s after the "
        "start",
        "tokens     2,000 processed, 1,500 without padding, 1,000 targets, 25% padding, "
        "750 per second without padding,",
        "           evaluations and saves apart",
        "sequences  5 in 3 rows, 2.5 per second of the steps, 300 tokens each (100 to 400), packs 87.5% full",
        "work       6 TFLOPs (8 TFLOPs computed), MFU 50% (HFU 66.7%) of 2 x 3 TFLOP/s (bf16, a matmul measured here)",
        "memory     3.00 GiB at most in the host's memory",
        "energy     not known",
        "money      not known",
        "Not measured:",
        "  the launcher: it runs before this process starts; its time is in no record",
        "  the interpreter's own end: Python exits after the last record that a run can write",
        "  energy: no meter was read",
        "  cost: the records state no price",
        "",
        "2 steps, too few to be sure; what was seen:",
        "1. 25% of the training loop is bookkeeping, callbacks and unattributed time  [info, possible: own_code]",
        "   costs 0.5 s",
        "   -> no callback and none of your methods holds most of it: profile Python to see the functions that take it",
        "      (PythonProfileCallback)",
        "2. 25% of the positions that are computed are padding  [info, possible: padding_waste]",
        "   costs 0.4 s",
        "Evidence, other remedies, what was not judged: hf-efficient diagnose",
        str(output),
    ]
    assert run("report", str(output / "efficiency"), "--no-html").out == done.out


def test_scores_of_tasks_stand_in_the_report_and_on_its_page(run, output):
    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    paired = PairedTest(0.25, 0.125, 0.375, 0.0039, "McNemar, exact")
    one = TaskScore("sums", "acc", "none", 5, 64, True, 0.75, 0.054, 0.5, 0.063, paired)
    scores = TaskScores(1, "out", "base", "0.4.13", False, 64, 8, "cpu", 12.0, [one])
    (output / "efficiency/evaluation.json").write_text(strict_json(scores))
    lines = [line.rstrip() for line in run("report", str(output)).out.splitlines()]
    place = lines.index("sums acc         0.5000 ± 0.0630  0.7500 ± 0.0540     +0.2500  0.004")
    verdict = "better after training (p 0.004, McNemar, exact; 95% interval +0.1250 to +0.3750)"
    assert " ".join(lines[place + 1 : place + 3]) == f"sums acc (5 shots, filter none, 64 examples): {verdict}"
    assert lines[place + 3] == (
        "lm-eval 0.4.13, first 64 examples of each task, without a chat template, batches of 8, 12 s"
    )
    page = (output / "efficiency/report.html").read_text()
    assert "<h3>Benchmark tasks</h3>" in page
    assert verdict in page


def test_eval_names_the_extra_that_it_needs(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    done = run("eval", "./out", "--tasks", "gsm8k")
    assert done.code == 2
    assert (
        "The package lm_eval, for benchmark tasks, is not installed: run `pip install 'hf-efficient[eval]'`."
        in done.err
    )


UNKNOWN_PEAK = {"peak_flops_per_second": None, "peak_reason": "the peak of 'X' is not known here"}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (UNKNOWN_PEAK, "work       6 TFLOPs (8 TFLOPs computed), MFU n/a: the peak of 'X' is not known here"),
        ({"dtype": "tf32", "accelerators": 1}, "MFU 100% (HFU n/a) of 3 TFLOP/s (tf32, a matmul measured here)"),
    ],
)
def test_what_is_known_of_the_work(run, output, changed, told):
    add(output, kind="facts", facts={"work": {**WORK, **changed}})
    assert told in run("report", str(output)).out


METERS = {
    name: {"id": name, "machine": "m", "source": source, "unit": "joules", "note": note}
    for name, source, note in (("GPU 0", "nvml", "energy counter"), ("CPU", "estimate", "by table"))
}


def sample(at: float, **joules: float) -> dict[str, object]:
    return {"schema_version": 1, "process": 0, "at_seconds": at, "joules": joules}


def test_energy_and_money(run, output):
    price = {"price_usd_per_hour": 720, "source": "by hand", "estimated": False}
    add(output, kind="facts", facts={"price": price, "grid": {"grams_per_kwh": 500.0, "source": "Utopia 2023"}})
    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    first = {**sample(0.0, **{"GPU 0": 0.0, "CPU": 0.0}), "meters": METERS}
    samples = [first, sample(5.0, **{"GPU 0": 27000.0, "CPU": 9000.0})]
    (output / "efficiency/system.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
    told = " ".join(run("report", str(output), "--no-html").out.split())
    # 36,000 J = 0.01 kWh, times 500; 5 s at 720 an hour; 1,500 tokens
    assert (
        "energy 0.01 kWh (in part estimated): CPU 0.0025 kWh, GPU 0 0.0075 kWh; 5 g CO2e at 500 g/kWh (Utopia 2023) "
        "money $1.00 at $720.00/h (by hand); $666.67 per million tokens without padding Not measured: the launcher"
    ) in told
    assert "measured energy of CPU: it is estimated: by table" in told


def test_a_run_that_was_killed_says_so(run, output):
    alive = {"open_phase": "evaluation", "phase_seconds": {"evaluation": 3.0}}
    add(output, kind="alive", at_seconds=7.5, started_at_seconds=4.0, **alive)
    done = run("report", str(output))
    assert done.code == 0
    assert done.out.startswith("The run did not end: its last heartbeat is 7.5 s after its start, in evaluation")
    assert "  the end of the run: the process left no end: it was killed, or it is still running" in done.out


def test_json_is_that_of_run_json_which_is_enough(run, output):
    add(output, kind="end", ended="done", error=None, at_seconds=5.0)
    write_account(output / "efficiency", account_of(output / "efficiency"))
    text = (output / "efficiency/run.json").read_text()
    assert run("report", str(output), "--json").out == text
    for name in ("steps.jsonl", "spans.jsonl"):
        (output / "efficiency" / name).unlink()
    assert run("report", str(output), "--json").out == text


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    write_records(Path("out"), steps=8)
    return Path("out")


def test_the_page_is_written_beside_the_records_or_why_it_is_not(run, recorded):
    done = run("report", str(recorded))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "The page is out/efficiency/report.html"
    assert (recorded / "efficiency/report.html").read_text().startswith("<!doctype html>")
    (recorded / "efficiency/report.html").unlink()
    (recorded / "efficiency/report.html").mkdir()
    done = run("report", str(recorded))
    assert done.code == 0
    assert done.out.startswith("The run took")
    assert done.err.startswith("The page is not written: out/efficiency/report.html is a folder. Name a file in a")


NO_FOLDER = "no such folder; name the OUTPUT_DIR of a run\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("gone", f"gone: {NO_FOLDER}"),
        (".", ".: holds no records of a run"),
        ("out --html gone/page.html", "--html: there is no folder gone. Name a f"),
        ("out --html a.html --no-html", "--no-html: --html FILE is given too. Leave one of them out."),
        ("gone/deeper --watch", f"gone/deeper: {NO_FOLDER}"),
        ("out/efficiency/spans.jsonl --watch", f"out/efficiency/spans.jsonl: {NO_FOLDER}"),
        ("out --watch --json", "--watch shows a run in the terminal"),
    ],
)
def test_what_is_no_run_and_flags_that_cannot_be(run, recorded, arguments, told):
    done = run("report", *arguments.split())
    assert done.code == 2
    assert told in done.err


def test_several_runs_are_for_compare(run, recorded):
    done = run("report", "out", "other", "--html", "two.html")
    assert done.code == 2
    assert "other: report shows one run. Write hf-efficient compare out other\n" in done.err


def test_json_beside_a_page_that_is_named(run, recorded):
    done = run("report", "out", "--json", "--html", "page.html")
    assert done.out == run("report", "out", "--json").out
    assert done.err == "The page is page.html\n"
    assert Path("page.html").read_text().startswith("<!doctype html>")


ALIVE = {"kind": "alive", "process": 0, "at_seconds": 7.5, "started_at_seconds": 4.0, "open_phase": "evaluation"}
ALIVE |= {"phase_seconds": {"evaluation": 3.5}, "memory": {}}
END = {"kind": "end", "process": 0, "ended": "done", "error": None, "at_seconds": 9.0, "memory": {}}


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in its evaluation."""
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "out/efficiency").mkdir(parents=True)
    write(tmp_path / "out", START, ALIVE)
    return tmp_path / "out"


def write(followed: Path, *lines: object) -> None:
    (followed / "efficiency/spans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def age(followed: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(followed / "efficiency/spans.jsonl", (at, at))


@pytest.fixture
def between_looks(monkeypatch):
    """What happens between one look and the next, in order; nobody sleeps."""
    events = []

    def sleep(seconds):
        assert events, "it looks on for ever"
        events.pop(0)()

    monkeypatch.setattr(watches.time, "sleep", sleep)
    return events


def test_it_ends_when_the_run_ends(run, followed, between_looks):
    between_looks += [lambda: write(followed, START, {**ALIVE, "at_seconds": 8.0}), lambda: write(followed, START, END)]
    done = run("report", str(followed), "--watch")
    assert (done.code, done.err, between_looks) == (0, "", [])
    assert f"{followed}  ended after 9.0 s" in done.out


def test_a_run_that_falls_silent_is_given_up_after_a_minute(run, followed, between_looks, monkeypatch):
    now = [time.monotonic()]
    monkeypatch.setattr(watches.time, "monotonic", lambda: now[0])
    states = []
    screen = watches._screen
    monkeypatch.setattr(watches, "_screen", lambda view, run_dir: states.append(view.state) or screen(view, run_dir))
    between_looks += [lambda seconds=seconds: now.append(now.pop() + seconds) for seconds in (5, 6, 48, 2)]
    assert run("report", str(followed), "--watch").code == 0
    assert states == ["running", "running", "silent", "silent", "gone"]


def test_a_record_that_is_being_written_over_is_looked_at_again(run, followed, between_looks):
    broken = {"kind": "process", "process": 0, "schema_version": 9}
    between_looks += [lambda: write(followed, START, broken)] * 5 + [lambda: write(followed, START, END)]
    done = run("report", str(followed), "--watch")
    assert (done.code, between_looks) == (0, [])
    between_looks += [lambda: write(followed, START, ALIVE), *[lambda: write(followed, START, broken)] * 6]
    write(followed, START, ALIVE)
    done = run("report", str(followed), "--watch")
    assert (done.code, "schema_version 9 is newer" in done.err) == (2, True)


def test_a_start_is_shown_and_followed_to_its_place(run, followed, between_looks, monkeypatch):
    """Over an old run, too, whose records are there until the new one is ready."""
    loading = {**ALIVE, "open_phase": "model_load", "phase_seconds": {"model_load": 3.5}}
    write(followed, START, END)
    age(followed, 100)
    start = followed / "efficiency/starting"
    (start / "efficiency").mkdir(parents=True)
    write(start, START, loading)
    (start / "efficiency/spans.jsonl").rename(start / "spans.jsonl")
    texts = []
    screen = watches._screen

    def shown(view, run_dir):
        texts.append(view.account.time.processes[-1].open_phase)
        return screen(view, run_dir)

    monkeypatch.setattr(watches, "_screen", shown)
    rank_files = paths.rank_files

    def moves_while_it_is_looked_at(directory, kind):
        found = rank_files(directory, kind)
        for path in found.values():
            monkeypatch.setattr(paths, "rank_files", rank_files)
            path.replace(followed / "efficiency/spans.jsonl")
        return found

    between_looks += [
        lambda: monkeypatch.setattr(paths, "rank_files", moves_while_it_is_looked_at),
        lambda: write(followed, START, ALIVE),
        lambda: write(followed, START, END),
    ]
    done = run("report", str(followed), "--watch")
    assert (done.code, done.err, between_looks) == (0, "", [])
    assert texts == ["model_load", "model_load", "evaluation", None]
