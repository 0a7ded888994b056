"""What a process leaves of the run that holds it: its spans, its samples, and in the end its account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hf_efficient.account.reading import records_path
from hf_efficient.measure.ending import Ending
from hf_efficient.measure.machine import machine_facts
from hf_efficient.measure.memory import device_peaks, peak_rss_bytes
from hf_efficient.measure.meters.cuda import current_device
from hf_efficient.measure.other_ranks import await_other_ranks
from hf_efficient.measure.run_results import RunResults
from hf_efficient.measure.span_records import SpanRecords, Way
from hf_efficient.measure.spans import SignOfLife
from hf_efficient.measure.stream import FaultLatch
from hf_efficient.measure.system import SystemStream

__all__ = ["RunFiles"]


class RunFiles:
    """Of one run after the other.

    Attributes:
        directory: where the run that holds the process is recorded; None while there is none.
        way: how that run is recorded; of several trainings, how the last one is.
        latch: told once what cannot be written of it.
        system: samples memory and energy beside it; None while there is none.
        ended: how it ended, as far as is known now; None while it goes on.
        gone: it has ended, and somebody was seen to have removed it since.
    """

    def __init__(self, records: SpanRecords) -> None:
        """No run holds the process.

        Args:
            records: the lines of the process.
        """
        self.directory: Path | None = None
        self.way: Way | None = None
        self.latch = FaultLatch()
        self.system: SystemStream | None = None
        self.ended: Ending | None = None
        self.gone = False
        self._records = records
        self._results = RunResults()
        self._device_peaks: dict[str, int] = {}
        self._rank = 0
        self._held: set[Path] = set()

    def has_held(self, directory: Path) -> bool:
        """Whether a run of this process was recorded there."""
        return directory.resolve() in self._held

    def open(self, directory: Path, rank: int, way: Way, alive: SignOfLife, now_ns: Callable[[], int]) -> None:
        """A run holds the process from here on.

        Args:
            directory: its folder, an absolute path.
            rank: of the process.
            way: how the run is recorded.
            alive: the sign of life.
            now_ns: the clock.
        """
        self.directory, self.way, self.latch = directory, way, FaultLatch()
        self._held.add(directory.resolve())
        self.ended, self.gone, self._rank = None, False, rank
        self._results.forget()
        self._records.open(directory, rank, way, alive, self.latch)
        self._records.state_later("system", machine_facts)
        self.system = SystemStream(
            records_path(directory, "system", rank),
            self._records.process,
            lambda: self._records.seconds(now_ns()),
            self.latch,
            current_device(),
        )

    def move_to(self, directory: Path) -> None:
        """The run is recorded there from here on, with what was recorded of it so far in this process.

        Args:
            directory: its folder, an absolute path on the same file system.
        """
        self.directory = directory
        self._held.add(directory.resolve())
        self._results.forget()
        self._records.move_to(records_path(directory, "spans", self._rank))
        if self.system is not None:
            self.system.device = current_device()
            self.system.move_to(records_path(directory, "system", self._rank))

    def are_gone(self) -> bool:
        """Whether the run has ended, and somebody has removed what was recorded of it."""
        if self.directory is not None and self.ended is not None:
            self.gone = self.gone or not records_path(self.directory, "spans", self._rank).exists()
        return self.gone

    def go_on(self, way: Way) -> None:
        """The run that holds the process has not ended after all.

        Args:
            way: how its next training is recorded; a recipe's run stays one.
        """
        self.ended = None
        if self.way != "recipe":
            self.way = way
        self.wake()

    def wake(self) -> None:
        """Write and sample what comes, also after the end of the run."""
        self._records.wake()
        if self.system is not None:
            self.system.wake()

    def close(self) -> None:
        """Everything is in the files afterwards, and no thread runs."""
        self._records.close()
        if self.system is not None:
            self.system.close()

    def dismiss_system(self) -> None:
        """The samples end where the run has: one that sleeps would take another of a time that is not the run's."""
        if self.system is not None and self.system.is_awake:
            self.system.close()
        self.system = None

    def write_end(self, at_ns: int, *, page: bool = True) -> None:
        """Tell how the run ended, close, and write its account.

        Args:
            at_ns: when, by the clock.
            page: whether to write the page too.
        """
        if not self._records.is_open or self.ended is None or self.directory is None or self.gone:
            return
        if not self.directory.is_dir():
            self.gone = self.latch.told = True  # whoever removed it knows
            self.close()
            return
        at = self._records.seconds(at_ns)
        told = {"ended": self.ended.how, "error": self.ended.error, "at_seconds": at, "memory": self.memory()}
        self._records.write({"kind": "end", **told})
        self.close()
        self._records.dirty = False
        if self._rank == 0 and not self.latch.told:
            if self.ended.how != "error":  # after which the others may hang
                await_other_ranks(self.directory)
            self._results.write(self.directory, self.latch, page=page, tell=self.way != "recipe")

    def forget(self) -> None:
        """No run holds the process any more."""
        self._records.forget()
        self._results.forget()
        self.directory = self.way = self.system = None

    def note_memory(self) -> None:
        """Read the device's peaks from the allocator's books on the host."""
        if self.system is not None:
            self.system.device = current_device()
        peaks = device_peaks()
        self._device_peaks = {name: max(value, self._device_peaks.get(name, 0)) for name, value in peaks.items()}

    def memory(self) -> dict[str, int]:
        """The peaks of the process until now, as far as they are known; of the device, those that were read."""
        rss = peak_rss_bytes()
        return {**({} if rss is None else {"peak_rss_bytes": rss}), **self._device_peaks}
