"""What a process has loaded, counted by hand."""

from __future__ import annotations

from array import array

from hf_efficient.recording.loader import COUNTS, BatchTimes, counts_in


def counted(readings, waits=((0.0, 0),) * 2):
    """A row of counts, and what adds to it by clocks that give these readings one after the other."""
    row = array("d", [0.0] * len(COUNTS))
    clocks = tuple(iter(of_one).__next__ for of_one in zip(*readings, strict=True))
    return row, BatchTimes(memoryview(row), clocks, iter(waits).__next__)


def load(times):
    times.fetch_begins()
    times.collate_begins()
    times.ends()


def test_a_batch_by_hand():
    row, times = counted([(10.0, 1.0, 2.0), (13.0, 1.5, 4.0), (14.0, 2.25, 6.0)])
    load(times)
    assert dict(zip(COUNTS, row, strict=True)) == {
        "fetched": 1.0,
        "fetch_seconds": 3.0,
        "fetch_cpu_seconds": 0.5,
        "fetch_process_cpu_seconds": 2.0,
        "collate_seconds": 1.0,
        "collate_cpu_seconds": 0.75,
        "collate_process_cpu_seconds": 2.0,
        "core_wait_seconds": 0.0,
        "read_bytes": 0.0,
    }


def test_what_a_thread_waits_for():
    row, times = counted([(0.0, 0.0, 0.0)] * 3, waits=[(0.5, 512), (0.75, 1536)])
    load(times)
    assert (row[COUNTS.index("core_wait_seconds")], row[COUNTS.index("read_bytes")]) == (0.25, 1024.0)


def test_a_fetch_that_fails_takes_time_and_makes_no_batch():
    row, times = counted([(1.0, 0.0, 0.0), (3.0, 0.5, 0.5)])
    times.fetch_begins()
    times.ends()
    assert list(row)[:4] == [0.0, 2.0, 0.5, 0.5]


def test_a_collator_that_fails_makes_a_batch_of_its_own_time():
    """It is counted: the time belongs to the collator, and the training ends with its error."""
    row, times = counted([(1.0, 0.0, 0.0), (2.0, 0.0, 0.0), (5.0, 0.0, 0.0)])
    times.fetch_begins()
    times.collate_begins()
    times.ends()
    assert (row[COUNTS.index("fetch_seconds")], row[COUNTS.index("collate_seconds")]) == (1.0, 3.0)


def test_counts_of_two_workers_add_up():
    first, second = list(range(len(COUNTS))), [10.0] * len(COUNTS)
    raw = bytes(array("d", [*first, *second]))
    assert counts_in(bytes(array("d", first))) == first
    assert counts_in(raw) == [10.0 + number for number in range(len(COUNTS))]
