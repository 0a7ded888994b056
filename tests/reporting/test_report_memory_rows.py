from __future__ import annotations

from hf_efficient.records.amounts import MemoryAccount, MemoryCategory
from hf_efficient.reporting.run_rows import memory_rows

GIB = 2**30


def categories(**sizes):
    return [MemoryCategory(name, int(size * GIB), "exact") for name, size in sizes.items()]


def test_peaks_alone():
    assert list(memory_rows(MemoryAccount(3 * GIB, None, None, None))) == [
        ("memory", "3.00 GiB at most in the host's memory")
    ]
    assert list(memory_rows(MemoryAccount(None, None, None, None))) == [("memory", "not known")]


def test_the_largest_first():
    found = categories(weights=4, adapter=0.5, gradients=0, optimizer_state=1, rest=2)
    memory = MemoryAccount(3 * GIB, 8 * GIB, 9 * GIB, 2, {"forward_backward": 8 * GIB, "optimizer": 6 * GIB}, found)
    assert list(memory_rows(memory)) == [
        (
            "memory",
            "3.00 GiB at most in the host's memory, 8.00 GiB allocated on the device, 9.00 GiB reserved, "
            "2 allocation retries",
        ),
        ("", "weights 4.00 GiB, everything else 2.00 GiB, optimizer state 1.00 GiB, adapter 512.0 MiB"),
        ("", "at most in forward and backward 8.00 GiB, optimizer 6.00 GiB"),
    ]


def test_more_than_the_peak():
    rows = dict(memory_rows(MemoryAccount(None, 3 * GIB, None, None, None, categories(weights=4, rest=-1))))
    assert rows[""] == "weights 4.00 GiB; 1.00 GiB of that are not there at the moment of the peak"
