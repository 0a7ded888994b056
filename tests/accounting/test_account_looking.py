"""The files of several ranks, read in this process and in others."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from test_account_build import lines, step
from test_account_series import full_step, reading

from hf_efficient.accounting import run_records as looking
from hf_efficient.accounting.run_records import RunReader, read_records
from hf_efficient.accounting.step_sums import SequenceSums, WorkSums
from hf_efficient.accounting.steps import Thinned
from hf_efficient.errors import OutputError

METER = {"id": "a", "machine": "b", "source": "nvml", "unit": "joules", "note": ""}


@pytest.fixture
def run(tmp_path):
    lines(tmp_path / "system.jsonl", reading(0, 1.0, rss_bytes=5, joules={"GPU 0": 1}, meters={"GPU 0": METER}))
    lines(tmp_path / "steps.jsonl", full_step(1, 0.0, 1.0), full_step(2, 1.0, 3.0), step(3, 0.0, 1.0, segment=1))
    lines(tmp_path / "steps.rank1.jsonl", full_step(1, 0.0, 2.0, rank=1))
    lines(tmp_path / "steps.rank10.jsonl", *[step(number, 0.0, 1.0, rank=10) for number in (1, 2, 3, 4)])
    with (tmp_path / "steps.rank10.jsonl").open("a") as file:
        file.write('\0\n{"half')
    return tmp_path


@pytest.fixture
def others(monkeypatch):
    """Read by two other processes, however little there is; counts them."""
    started = []

    class Counted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(looking, "_WORTH_A_PROCESS_BYTES", 0)
    monkeypatch.setattr(looking, "_cores", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", Counted)
    return started


def test_sums_by_hand(run):
    first, second, _ = read_records(run).ranks
    one, two = first.segments
    assert (one.steps, one.wall_seconds, one.first_ends_at_seconds, one.last_ends_at_seconds) == (2, 4.0, 1.0, 4.0)
    assert (one.tokens, two.tokens["processed"]) == ({"processed": 20, "non_padding": 16, "loss_bearing": 8}, 10)
    assert one.sums.sequences == SequenceSums(rows=4, documents=6, shortest=1, longest=4, length_buckets={"4": 6})
    assert one.sums.work == WorkSums(200, 240)
    assert (two.sums.sequences, two.sums.work) == (None, None)
    assert (one.device_steps, one.device_seconds, one.phase_seconds["forward"]) == (2, {"forward": 0.25}, 1.0)
    assert list(one.step_seconds) == [1.0, 3.0]
    assert (list(second.segments[0].step_seconds), second.buckets) == ([], Thinned())


def test_other_processes_find_the_same(run, monkeypatch, caplog, request):
    def told():
        return [(entry.name, entry.levelname, entry.getMessage()) for entry in caplog.records]

    with caplog.at_level("INFO"):
        alone, told_alone = read_records(run), told()
        caplog.clear()
        others = request.getfixturevalue("others")
        found = read_records(run)
    assert len(others) == 2
    assert all(one.returncode == 0 for one in others)
    assert [rank.rank for rank in found.ranks] == [0, 1, 10]
    assert found == alone
    assert told_alone == [
        ("hf_efficient.run_dir.reading", "WARNING", f"{run}/steps.rank10.jsonl:5 is not a JSON object and skipped"),
        ("hf_efficient.run_dir.reading", "INFO", f"{run}/steps.rank10.jsonl:6 is half-written and skipped"),
    ]
    assert told() == told_alone


def test_other_processes_go_on_where_a_reader_was(run, others):
    reader = RunReader(run)
    reader.look()
    lines(run / "steps.rank1.jsonl", full_step(2, 2.0, 2.0, rank=1), full_step(3, 4.0, 2.0, rank=1))
    lines(run / "system.jsonl", reading(0, 2.0, rss_bytes=7))
    del others[:]
    assert reader.look() == read_records(run)
    assert [one.returncode for one in others] == [0] * 4


def test_a_fault_in_another_process_is_told_here(run, others):
    lines(run / "steps.rank1.jsonl", {**step(2, 0.0, 1.0), "schema_version": 4})
    with pytest.raises(OutputError, match=r"steps.rank1.jsonl:2: schema_version 4 is newer than 1"):
        read_records(run)
    assert len(others) == 2


@pytest.mark.parametrize("command", ["/nowhere/python", "python-that-fails"])
def test_where_no_process_can_be_had_it_reads_alone(run, others, monkeypatch, tmp_path, command):
    fails = tmp_path / "python-that-fails"
    fails.write_text("#!/bin/sh\nexit 3\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sys, "executable", command if command.startswith("/") else str(fails))
    assert [len(rank.segments) for rank in read_records(run).ranks] == [2, 1, 1]
    assert len(others) == (0 if command.startswith("/") else 2)


@pytest.mark.parametrize("executable", ["", "/opt/program"])
def test_a_program_with_python_inside_is_not_started(run, others, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    assert len(read_records(run).ranks) == 3
    assert others == []


def test_a_small_run_is_read_at_once(run, others, monkeypatch):
    monkeypatch.setattr(looking, "_WORTH_A_PROCESS_BYTES", 1 << 20)
    assert len(read_records(run).ranks) == 3
    assert others == []


def test_a_script_without_a_main_guard(run):
    """As with multiprocessing's spawn, such a script would be run again; here it is not."""
    script = run / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from hf_efficient.accounting import looking\n"
        "from hf_efficient.accounting.run_records import read_records\n"
        "looking._WORTH_A_PROCESS_BYTES = 0\n"
        "looking._cores = lambda: 2\n"
        f"print(len(read_records(Path({str(run)!r})).ranks))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
    assert logging.getLogger("hf_efficient").level == logging.NOTSET
