"""What happens to the records that lie where a run begins anew."""

from __future__ import annotations

import json
import logging
import os

import pytest
from hand_clock import Hand, timeline_of

from hf_efficient.recording.timeline import open_run
from hf_efficient.run_dir.archive import set_aside

OF_A_RUN = ("run.json", "report.html", "recipe.resolved.yaml")


def records(folder, *ranks, at, name="run"):
    """The files of a run whose ranks wrote last at about this time, each with its name and rank in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        for kind in ("steps", "spans", "system"):
            path = folder / (f"{kind}.jsonl" if rank == 0 else f"{kind}.rank{rank}.jsonl")
            path.write_text(json.dumps(f"{name} {rank}"))
            os.utime(path, (at + rank / 10, at + rank / 10))
    if 0 in ranks:
        for file in OF_A_RUN:
            (folder / file).write_text(f"{name} 0")


def found(folder):
    """By folder, which runs' ranks lie in it, with the number of their files."""
    told: dict[str, dict[str, int]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            whose = told.setdefault(str(path.parent.relative_to(folder)), {})
            text = path.read_text().strip('"')
            whose[text] = whose.get(text, 0) + 1
    return told


def test_everything_of_a_run_is_moved(tmp_path):
    records(tmp_path, 0, at=1000, name="a")
    (tmp_path / "mine.txt").write_text("kept")
    assert set_aside(tmp_path, 0, 1) == tmp_path / "previous/1"
    assert found(tmp_path) == {".": {"kept": 1}, "previous/1": {"a 0": 6}}
    assert set_aside(tmp_path, 0, 1) is None
    records(tmp_path, 0, at=2000, name="b")
    assert set_aside(tmp_path, 0, 1) == tmp_path / "previous/2"
    assert found(tmp_path)["previous/2"] == {"b 0": 6}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_ranks_move_their_own_to_the_same_folder_in_whatever_order(tmp_path, order):
    for run, at in (("a", 1000), ("b", 2000), ("c", 3000)):
        records(tmp_path, 0, 1, 2, at=at, name=run)
        for rank in order:
            set_aside(tmp_path, rank, 3)
            if rank == 0:  # its new records are there before the other ranks look
                (tmp_path / "spans.jsonl").write_text("new")
        (tmp_path / "spans.jsonl").unlink()
    assert found(tmp_path) == {
        f"previous/{number}": {f"{run} 0": 6, f"{run} 1": 3, f"{run} 2": 3} for number, run in enumerate("abc", 1)
    }


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_ranks_that_come_and_go(tmp_path, order):
    records(tmp_path, 0, 1, at=1000, name="a")
    set_aside(tmp_path, 0, 1)  # one rank follows two: it moves what the other has left
    assert found(tmp_path) == {"previous/1": {"a 0": 6, "a 1": 3}}
    records(tmp_path, 0, at=2000, name="b")
    for rank in order:  # two follow one
        set_aside(tmp_path, rank, 2)
    records(tmp_path, 0, 1, at=3000, name="c")
    for rank in order:
        set_aside(tmp_path, rank, 2)
    assert found(tmp_path) == {
        "previous/1": {"a 0": 6, "a 1": 3},
        "previous/2": {"b 0": 6},
        "previous/3": {"c 0": 6, "c 1": 3},
    }


def test_a_node_with_a_folder_of_its_own(tmp_path):
    for number, at in ((1, 1000), (2, 2000)):
        records(tmp_path, 3, at=at, name=f"run {number}")
        assert set_aside(tmp_path, 3, 4) == tmp_path / f"previous/{number}"
    assert found(tmp_path) == {"previous/1": {"run 1 3": 3}, "previous/2": {"run 2 3": 3}}


def test_only_what_another_process_left_is_moved_and_only_from_the_first_step(tmp_path, caplog):
    records(tmp_path, at=0)
    first = timeline_of(Hand())
    with caplog.at_level(logging.WARNING):
        open_run(first, tmp_path, 0, 1, "trainer", resumed=False)
        first.end()
        open_run(first, tmp_path / "other", 0, 1, "trainer", resumed=False)
        first.end()
        open_run(first, tmp_path, 0, 1, "trainer", resumed=False)  # the account is of the process
        first.end()
        first.release()
        assert not (tmp_path / "previous").exists()
        resumed = timeline_of(Hand())
        open_run(resumed, tmp_path, 0, 1, "trainer", resumed=True)
        resumed.end()
        open_run(resumed, tmp_path, 0, 1, "trainer", resumed=False)
        resumed.end()
        resumed.release()
        assert not (tmp_path / "previous").exists()
        assert caplog.messages == []
        anew = timeline_of(Hand())
        open_run(anew, tmp_path, 0, 1, "trainer", resumed=False)
        anew.end()
        anew.release()
    assert {path.name for path in (tmp_path / "previous/1").iterdir()} >= {"spans.jsonl", "system.jsonl", "run.json"}
    (told,) = caplog.messages
    assert str(tmp_path / "previous/1") in told
    starts = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text().splitlines()]
    assert [line["process"] for line in starts if line["kind"] == "process"] == [0]
    assert anew.earlier.wall_seconds == 0.0


def test_what_cannot_be_moved_is_told_and_the_run_goes_on(tmp_path, caplog):
    records(tmp_path, 0, at=1000)
    for kind in ("steps", "spans", "system"):
        (tmp_path / f"{kind}.jsonl").write_text("")
    (tmp_path / "previous").write_text("a file")
    timeline = timeline_of(Hand())
    open_run(timeline, tmp_path, 0, 1, "trainer", resumed=False)
    timeline.end()
    timeline.release()
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "previous" in told
    assert (tmp_path / "spans.jsonl").read_text().startswith('{"kind":"process"')
