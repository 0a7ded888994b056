"""The page that a run leaves: written, written again, and no danger to the run."""

from __future__ import annotations

import logging

import pytest
from hand_clock import Hand, timeline_of

from hf_efficient.reporting import finish_run


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def timeline(hand):
    """Of a process that started three seconds before."""
    return timeline_of(hand, lived_seconds=3)


def test_a_run_that_ends_leaves_its_page(timeline, hand, tmp_path):
    timeline.begin("imports")
    timeline.open(tmp_path, 0, "recipe")
    hand.wait(2)
    timeline.end()
    assert "5.0" in (tmp_path / "report.html").read_text()
    timeline.release()


def test_other_ranks_leave_no_page(timeline, tmp_path):
    timeline.begin("imports")
    timeline.open(tmp_path, 1, "recipe")
    timeline.end()
    assert not (tmp_path / "report.html").exists()
    timeline.release()


def test_a_page_that_cannot_be_written_is_one_warning(timeline, tmp_path, caplog):
    (tmp_path / "report.html").mkdir()
    timeline.begin("imports")
    timeline.open(tmp_path, 0, "recipe")
    with caplog.at_level(logging.WARNING):
        timeline.end()
        timeline.exits()
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{tmp_path}/report.html cannot be written ([Errno 21] Is a directory: "
        f"'{tmp_path}/.report.html.{__import__('os').getpid()}' -> '{tmp_path}/report.html'). The run is not affected; "
        f"`hf-efficient report {tmp_path} --html FILE` makes it."
    ]
    assert not timeline.broken
    assert (tmp_path / "run.json").is_file()


def test_a_fault_in_the_page_is_one_warning(timeline, tmp_path, caplog, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(finish_run, "run_page", fail)
    timeline.begin("imports")
    timeline.open(tmp_path, 0, "recipe")
    with caplog.at_level(logging.WARNING):
        timeline.end()
        timeline.exits()
    (entry,) = caplog.records
    assert entry.getMessage() == "report.html could not be made, because of a fault; the run is not affected."
    assert entry.exc_info is not None
    assert (tmp_path / "run.json").is_file()
    assert not timeline.broken
