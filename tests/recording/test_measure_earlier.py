from __future__ import annotations

import json
import logging

import pytest

from hf_efficient.recording.earlier import read_earlier
from hf_efficient.recording.live import Earlier

START = {"kind": "process", "schema_version": 1, "way": "recipe", "process_start_from": "kernel"}


def write(folder, *lines):
    (folder / "spans.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_walls_evaluations_and_saves_of_earlier_processes(tmp_path):
    write(
        tmp_path,
        {**START, "process": 0, "began_at_seconds": 0.0},
        {"kind": "evaluation", "process": 0, "at_seconds": 20.0, "step": 0, "seconds": 8.0, "metrics": {}},
        {"kind": "evaluation", "process": 0, "at_seconds": 40.0, "step": 5, "seconds": 10.0, "metrics": {}},
        {"kind": "save", "process": 0, "at_seconds": 42.0, "step": 5, "seconds": 2.0},
        {"kind": "end", "process": 0, "at_seconds": 50.0, "ended": "done", "error": None, "memory": {}},
        {**START, "process": 1, "began_at_seconds": 5.0},  # killed: its last sign of life is at 25 s
        {
            "kind": "alive",
            "process": 1,
            "at_seconds": 25.0,
            "started_at_seconds": 5.0,
            "open_phase": None,
            "phase_seconds": {},
            "memory": {},
        },
    )
    assert read_earlier(tmp_path) == Earlier(70.0, 2, 18.0, 1, 2.0, joules=None)


def test_each_process_is_paid_at_its_own_price(tmp_path):
    def price(number, usd):
        stated = {"price_usd_per_hour": usd, "source": "the bill", "estimated": False}
        return {"kind": "facts", "process": number, "facts": {"price": stated}}

    def end(number, at):
        return {"kind": "end", "process": number, "at_seconds": at, "ended": "done", "error": None, "memory": {}}

    first = [{**START, "process": 0, "began_at_seconds": 0.0}, price(0, 1.0), end(0, 1800.0)]
    second = [{**START, "process": 1, "began_at_seconds": 0.0}, price(1, 10.0), end(1, 360.0)]
    write(tmp_path, *first, *second)
    found = read_earlier(tmp_path)
    assert found.cost_usd == pytest.approx(0.5 + 1.0)
    assert found.cost_at(100.0) == found.cost_usd


def test_a_price_that_nobody_stated_is_that_of_this_start():
    assert Earlier(wall_seconds=1800.0).cost_at(10.0) == 5.0
    assert Earlier(wall_seconds=1800.0).cost_at(None) is None


def test_the_energy_of_all_ranks(tmp_path):
    write(tmp_path, {**START, "process": 0, "began_at_seconds": 0.0})
    for rank, watts in ((0, 100.0), (1, 50.0)):
        meter = {"id": f"gpu {rank}", "machine": "m", "source": "nvml", "unit": "watts", "note": ""}
        lines = [
            {"schema_version": 1, "process": 0, "at_seconds": 1.0, "watts": {"GPU": watts}, "meters": {"GPU": meter}},
            {"schema_version": 1, "process": 0, "at_seconds": 3.0, "watts": {"GPU": watts}},
        ]
        path = tmp_path / ("system.jsonl" if rank == 0 else "system.rank1.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_earlier(tmp_path).joules == 2 * 100.0 + 2 * 50.0


def test_a_run_that_begins_has_spent_nothing(tmp_path):
    assert read_earlier(tmp_path) == Earlier(0.0, 0, 0.0, 0, 0.0, joules=0.0)


def test_records_that_cannot_be_read_are_told_and_count_from_now(tmp_path, caplog):
    write(tmp_path, {"kind": "process", "process": 0, "schema_version": 9})
    with caplog.at_level(logging.WARNING):
        assert read_earlier(tmp_path) == Earlier()
    assert "What this run has spent so far cannot be read" in caplog.text


def test_a_broken_line_is_left_out(tmp_path):
    rest = {"way": "recipe", "process_start_from": "kernel", "began_at_seconds": 0.0}
    saves = [{"kind": "save", "process": 0, "seconds": seconds} for seconds in (2.0, "two", 3.0)]
    write(tmp_path, {"kind": "process", "process": 0, **rest}, *saves)
    found = read_earlier(tmp_path)
    assert (found.saves, found.save_seconds) == (2, 5.0)
