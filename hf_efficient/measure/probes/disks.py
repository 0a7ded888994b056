"""What the disks of this machine do, and what this process has them do."""

from __future__ import annotations

import os

import psutil

from hf_efficient.measure.probes.family import children_of, io_bytes_of
from hf_efficient.measure.probes.probe import Rates

__all__ = ["DisksProbe"]


class DisksProbe:
    """Rates over all disks of the machine, and those of this process with its children.

        disk_read_bytes_per_second, disk_write_bytes_per_second
        disk_reads_per_second, disk_writes_per_second
        disk_latency_milliseconds       mean time that a request took, waiting included; absent without requests
        read_bytes_per_second, write_bytes_per_second    of this process and its children; Linux tells them

    What lies in the page cache is read from no disk, and a network file system is no disk of this machine.
    """

    name = "load of the disks"

    def __init__(self) -> None:
        self._disks, self._own = Rates(), Rates()

    def read(self, at: float) -> dict[str, float]:
        """See above."""
        found: dict[str, float] = {}
        disks = psutil.disk_io_counters(nowrap=False)
        if disks is not None:  # a container may show none
            rates = self._disks.of(
                at,
                {
                    "disk_read_bytes_per_second": disks.read_bytes,
                    "disk_write_bytes_per_second": disks.write_bytes,
                    "disk_reads_per_second": disks.read_count,
                    "disk_writes_per_second": disks.write_count,
                    "milliseconds": disks.read_time + disks.write_time,
                },
            )
            busy = rates.pop("milliseconds", 0.0)
            requests = rates.get("disk_reads_per_second", 0.0) + rates.get("disk_writes_per_second", 0.0)
            found |= {name: round(rate, 1) for name, rate in rates.items()}
            if requests > 0:
                found["disk_latency_milliseconds"] = round(busy / requests, 3)
        own = io_bytes_of([os.getpid(), *children_of(os.getpid())])
        if own is not None:
            counters = {"read_bytes_per_second": own[0], "write_bytes_per_second": own[1]}
            found |= {name: round(rate, 1) for name, rate in self._own.of(at, counters).items()}
        return found
