"""What a process has loaded, counted by hand."""

from __future__ import annotations

from array import array

from hf_efficient.measure.loader.counts import COUNTS, BatchTimes, counts_in


def counted(readings, blocks=(), waits=()):
    """A row of counts, and what adds to it by clocks that give these readings one after the other."""
    row = array("d", [0.0] * len(COUNTS))
    numbers, seconds = iter(blocks), iter(waits)
    ticks = iter(readings)
    times = BatchTimes(memoryview(row), lambda: next(ticks), lambda: next(numbers, 0), lambda: next(seconds, 0.0))
    return row, times


def test_a_batch_by_hand():
    row, times = counted([(10.0, 1.0, 2.0), (13.0, 1.5, 4.0), (14.0, 2.25, 6.0)], blocks=(7, 9), waits=(0.5, 0.75))
    times.fetch_begins()
    times.collate_begins()
    times.ends()
    assert dict(zip(COUNTS, row, strict=True)) == {
        "fetched": 1.0,
        "fetch_seconds": 3.0,
        "fetch_cpu_seconds": 0.5,
        "fetch_process_cpu_seconds": 2.0,
        "collate_seconds": 1.0,
        "collate_cpu_seconds": 0.75,
        "collate_process_cpu_seconds": 2.0,
        "core_wait_seconds": 0.25,
        "read_bytes": 1024.0,
    }


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
    assert counts_in(raw) == tuple(10.0 + number for number in range(len(COUNTS)))
