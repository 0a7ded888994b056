"""The time of a process by a clock that is set by hand, and the records that lie where a run begins anew."""

import json
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import psutil
import pytest
from hand_clock import Hand, lines, timeline_of
from waiting import wait_for_line

from hf_efficient.recording.meters import process_start
from hf_efficient.recording.steps import StepRecorder
from hf_efficient.recording.timeline import open_run
from hf_efficient.run_dir.paths import set_aside


def told(folder: Path, rank: int = 0):
    """Spans as (start, phases) and the other kinds by name; heartbeats and what the machine is are left out."""
    found = []
    for data in lines(folder / ("spans.jsonl" if rank == 0 else f"spans.rank{rank}.jsonl")):
        if data["kind"] == "span":
            assert sum(data["phase_seconds"].values()) == pytest.approx(data["wall_seconds"])
            found.append((data["started_at_seconds"], data["phase_seconds"]))
        elif data["kind"] != "alive" and "system" not in data.get("facts", {}):
            found.append((data["kind"], data.get("at_seconds", data.get("began_at_seconds"))))
    return found


def test_the_start_of_this_process():
    start, lived = process_start(), time.time() - psutil.Process().create_time()
    assert start.source == ("kernel" if Path("/proc/self/stat").exists() else "psutil")
    assert (time.perf_counter_ns() - start.perf_ns) / 1e9 == pytest.approx(lived, abs=1.5)


def test_a_recipes_run(timeline, hand, tmp_path):
    timeline.begin("imports")
    hand.wait(0.5)
    with timeline.phase("model_load"):
        hand.wait(1)
        with timeline.phase("checkpointing"):
            hand.wait(2)
    timeline.open(tmp_path, 0, "recipe")
    hand.wait(0.25)
    timeline.open(tmp_path, 0, "trainer")  # the trainer inside, which only goes on
    timeline.enter("trainer_setup")
    timeline.train_begins(0, hand(), lambda at_ns: None)
    hand.wait(1)
    timeline.log.loop(True)
    with timeline.phase("forward"):
        hand.wait(5)
    timeline.log.loop(False)
    timeline.enter("shutdown")
    hand.wait(0.5)
    timeline.train_ends()
    timeline.log.end_phases()
    timeline.end()
    hand.wait(2)
    timeline.exits()
    assert timeline.way == "recipe"
    assert told(tmp_path) == [
        ("process", 0.0),
        (0.0, {"imports": 3.0}),
        (3.5, {"model_load": 1.0, "checkpointing": 2.0}),
        ("train", 6.75),
        (6.75, {"trainer_setup": 1.0}),
        ("train_end", 13.25),
        (12.75, {"shutdown": 0.5}),
        ("end", 13.25),
        (13.25, {"shutdown": 2.0}),
        ("end", 15.25),
    ]


def test_a_script_that_knows_nothing_of_it(timeline, hand, tmp_path):
    hand.wait(4)
    timeline.trainer_begins()
    with timeline.phase("trainer_setup"):
        hand.wait(1)
    hand.wait(2)
    timeline.open(tmp_path, 3, "trainer")
    hand.wait(1)  # nobody's: the trainer runs
    timeline.end(ValueError("no\nreally"))
    hand.wait(1)
    with timeline.phase("evaluation"):
        hand.wait(1)
    hand.wait(8)
    timeline.exits()
    assert told(tmp_path, rank=3) == [
        ("process", 0.0),
        (0.0, {"before_trainer": 7.0}),
        (7.0, {"trainer_setup": 1.0}),
        (8.0, {"outside_trainer": 2.0}),
        ("end", 11.0),
        (11.0, {"outside_trainer": 1.0}),
        (12.0, {"evaluation": 1.0}),
        (13.0, {"outside_trainer": 8.0}),
        ("end", 21.0),
    ]
    ends = [line["error"] for line in lines(tmp_path / "spans.rank3.jsonl") if line["kind"] == "end"]
    assert ends == ["ValueError: no"] * 2


def test_a_second_run_begins_where_it_begins(timeline, hand, tmp_path):
    timeline.open(tmp_path / "a", 0, "trainer")
    hand.wait(1)
    timeline.end()
    with timeline.phase("evaluation"):
        hand.wait(1)
    hand.wait(50)
    timeline.open(tmp_path / "b", 0, "trainer")
    hand.wait(1)
    timeline.end()
    timeline.release()
    hand.wait(50)
    timeline.begin("imports")
    timeline.open(tmp_path / "a", 0, "recipe")
    hand.wait(1)
    timeline.end()
    assert told(tmp_path / "a") == [
        ("process", 0.0),
        (0.0, {"before_trainer": 3.0}),
        ("end", 4.0),
        (4.0, {"evaluation": 1.0}),
        ("end", 5.0),
        ("process", 106.0),
        ("end", 107.0),
    ]
    assert told(tmp_path / "b") == [("process", 55.0), ("end", 56.0)]


def samplers():
    return sum(one.name == "hf-efficient records" for one in threading.enumerate())


def test_the_sampler_lives_as_long_as_the_run(timeline, hand, tmp_path):
    one, other = tmp_path / "a", tmp_path / "b"
    timeline.open(one, 0, "trainer")
    wait_for_line(one / "system.jsonl")
    assert samplers() == 1
    timeline.end()
    assert samplers() == 0
    with timeline.phase("evaluation"):
        assert samplers() == 1
        wait_for_line(one / "system.jsonl", 3)
        hand.wait(1)
    assert samplers() == 0
    hand.wait(50)
    timeline.enter("evaluation")  # and never left
    wait_for_line(one / "system.jsonl", 5)
    timeline.open(other, 0, "trainer")
    assert samplers() == 1
    timeline.end()
    timeline.release()
    assert samplers() == 0
    assert [line["at_seconds"] for line in lines(one / "system.jsonl")] == [3.0, 3.0, 3.0, 4.0, 54.0, 54.0]


def assert_left(folder, why, ended):
    """The two spans and the lines of the training below, which ended with its last event, and its one whole step."""
    assert told(folder)[2:] == [
        ("train", 3.0),
        ("train_end", 9.0),
        (7.0, {"forward_backward": 2.0, "optimizer": 0.0}),
        ("end", ended),
    ]
    # Facts, which a thread gathers, may follow the end.
    (end,) = [line for line in lines(folder / "spans.jsonl") if line["kind"] == "end"]
    assert (end["ended"], end["error"]) == ("error", why)
    assert [step["wall_seconds"] for step in lines(folder / "steps.jsonl")] == [3.0]


def left_in_the_middle(timeline, hand, folder):
    """A training whose first step takes 3 s; the second has been forward for 2 s at the last event, 4 s ago."""
    timeline.open(folder, 0, "callback")
    recorder = StepRecorder(timeline)
    recorder.open()
    hand.wait(1)
    recorder.next_step()
    recorder.mark("forward_backward")
    hand.wait(3)
    recorder.step_done(1, None)
    recorder.next_step()
    recorder.mark("forward_backward")
    hand.wait(2)
    recorder.mark("optimizer")
    hand.wait(4)
    return recorder


def test_a_training_that_never_ended_ends_when_another_run_opens(timeline, hand, tmp_path):
    before = set(threading.enumerate())
    recorder = left_in_the_middle(timeline, hand, tmp_path / "a")
    timeline.open(tmp_path / "b", 0, "trainer")
    timeline.end()
    assert set(threading.enumerate()) <= before
    # The 4 s since the last event are nobody's.
    assert_left(tmp_path / "a", "the training did not end, and another run began in its process", ended=13.0)
    assert told(tmp_path / "b") == [("process", 13.0), ("end", 13.0)]
    assert not recorder.recording
    assert timeline.live is None


def test_a_process_that_exits_in_the_middle_of_a_training(timeline, hand, tmp_path):
    left_in_the_middle(timeline, hand, tmp_path)
    timeline.exits()
    assert_left(tmp_path, "the process exited before its training ended", ended=13.0)


def test_a_start_that_is_ready_takes_its_records_along(timeline, hand, tmp_path):
    timeline.begin("imports")
    hand.wait(0.5)
    timeline.open(tmp_path / "starting", 0, "recipe")
    with timeline.phase("model_load"):
        hand.wait(1)
    timeline.move_to(tmp_path)
    assert (timeline.directory, timeline.has_held(tmp_path)) == (tmp_path, True)
    with timeline.phase("checkpointing"):
        hand.wait(2)
    timeline.end()
    assert told(tmp_path) == [
        ("process", 0.0),
        (0.0, {"imports": 3.0}),
        (3.5, {"model_load": 1.0}),
        (4.5, {"checkpointing": 2.0}),
        ("end", 6.5),
    ]
    assert (tmp_path / "system.jsonl").is_file()
    assert list((tmp_path / "starting").iterdir()) == []


def test_a_start_that_is_discarded_is_not_written_of_any_more(timeline, hand, tmp_path):
    timeline.begin("imports")
    timeline.open(tmp_path / "a", 0, "recipe")
    timeline.discard()
    assert timeline.directory is None
    assert samplers() == 0
    timeline.end(RuntimeError("planted"))
    timeline.release()
    hand.wait(4)
    timeline.open(tmp_path / "b", 0, "recipe")
    timeline.end()
    assert told(tmp_path / "a") == [("process", 0.0), (0.0, {"imports": 3.0})]
    assert told(tmp_path / "b")[0] == ("process", 7.0)  # what the mistake took is in nobody's account


@pytest.mark.parametrize(("rank", "error", "waits"), [(0, None, 1), (0, ValueError("no"), 0), (1, None, 0)])
def test_rank_0_waits_for_the_others_before_it_writes_the_account(timeline, tmp_path, monkeypatch, rank, error, waits):
    awaited = []
    monkeypatch.setattr("hf_efficient.recording.timeline.await_other_ranks", awaited.append)
    timeline.open(tmp_path, rank, "trainer")
    timeline.end(error)
    assert awaited == [tmp_path] * waits


def records(folder, *ranks, at, name="run"):
    """The files of a run whose ranks wrote last at about this time, each with its name and rank in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        for kind in ("steps", "spans", "system"):
            path = folder / (f"{kind}.jsonl" if rank == 0 else f"{kind}.rank{rank}.jsonl")
            path.write_text(json.dumps(f"{name} {rank}"))
            os.utime(path, (at + rank / 10, at + rank / 10))
    if 0 in ranks:
        for file in ("run.json", "report.html", "recipe.resolved.yaml"):
            (folder / file).write_text(f"{name} 0")


def found(folder):
    """By folder, which runs' ranks lie in it, with the number of their files."""
    told: dict[str, Counter] = defaultdict(Counter)
    for path in folder.rglob("*"):
        if path.is_file():
            told[str(path.parent.relative_to(folder))][path.read_text().strip('"')] += 1
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


def process_with(*runs):
    """A process that opens and ends a run in each folder, resumed or not."""
    process = timeline_of(Hand())
    for folder, resumed in runs:
        open_run(process, folder, 0, 1, "trainer", resumed=resumed)
        process.end()
    process.release()
    return process


def test_only_what_another_process_left_is_moved_and_only_from_the_first_step(tmp_path, caplog):
    records(tmp_path, at=0)
    other = tmp_path / "other"
    with caplog.at_level(logging.WARNING):
        process_with((tmp_path, False), (other, False), (tmp_path, False))  # the account is of the process
        process_with((tmp_path, True), (tmp_path, False))
        assert not (tmp_path / "previous").exists()
        assert caplog.messages == []
        anew = process_with((tmp_path, False))
    assert {path.name for path in (tmp_path / "previous/1").iterdir()} >= {"spans.jsonl", "system.jsonl", "run.json"}
    (message,) = caplog.messages
    assert str(tmp_path / "previous/1") in message
    assert [line["process"] for line in lines(tmp_path / "spans.jsonl") if line["kind"] == "process"] == [0]
    assert anew.earlier.wall_seconds == 0.0


def test_what_cannot_be_moved_is_told_and_the_run_goes_on(tmp_path, caplog):
    records(tmp_path, 0, at=1000)
    for kind in ("steps", "spans", "system"):
        (tmp_path / f"{kind}.jsonl").write_text("")
    (tmp_path / "previous").write_text("a file")
    process_with((tmp_path, False))
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "previous" in message
    assert (tmp_path / "spans.jsonl").read_text().startswith('{"kind":"process"')
