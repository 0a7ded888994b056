"""The page that a run leaves: written, written again, and no danger to the run."""

import logging
import os

import pytest
from hand_clock import Hand, timeline_of

from hf_efficient.reporting import finish_run


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def timeline(hand, tmp_path):
    """Of a process that started three seconds before, and whose page is asked for."""
    made = timeline_of(hand, lived_seconds=3)
    made.begin("imports")
    return made


@pytest.mark.parametrize("rank", [0, 1])
def test_a_run_that_ends_leaves_its_page(timeline, hand, tmp_path, rank):
    """The first rank alone."""
    timeline.open(tmp_path, rank, "recipe")
    hand.wait(2)
    timeline.end()
    page = tmp_path / "report.html"
    assert "5.0" in page.read_text() if rank == 0 else not page.exists()
    timeline.release()


def warning(timeline, folder, caplog):
    """The one warning of a run that ends well all the same."""
    timeline.open(folder, 0, "recipe")
    with caplog.at_level(logging.WARNING):
        timeline.end()
        timeline.exits()
    assert not timeline.broken
    assert (folder / "run.json").is_file()
    (entry,) = caplog.records
    return entry


def test_a_page_that_cannot_be_written_is_one_warning(timeline, tmp_path, caplog):
    page = tmp_path / "report.html"
    page.mkdir()
    assert warning(timeline, tmp_path, caplog).getMessage() == (
        f"{page} cannot be written ([Errno 21] Is a directory: '{tmp_path}/.report.html.{os.getpid()}' -> '{page}'). "
        f"The run is not affected; `hf-efficient report {tmp_path} --html FILE` makes it."
    )


def test_a_fault_in_the_page_is_one_warning(timeline, tmp_path, caplog, monkeypatch):
    def fail(*args):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(finish_run, "run_page", fail)
    entry = warning(timeline, tmp_path, caplog)
    assert entry.getMessage() == "report.html could not be made, because of a fault; the run is not affected."
    assert entry.exc_info is not None
