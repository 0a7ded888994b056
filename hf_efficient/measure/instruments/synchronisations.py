"""Census of the places where the host reads a tensor, and so waits for the device."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hf_efficient.measure.instruments.instrument import Instrument, Place
from hf_efficient.measure.instruments.read_modes import OperatorReads, PythonReads
from hf_efficient.measure.instruments.read_sites import Site, site_of_caller
from hf_efficient.measure.sync_warnings import counted_synchronisations

__all__ = ["Synchronisations"]

_MOST_SITES = 100
_ON_THE_HOST = (
    "there is no device here, so that nothing waited: these are the reads that would wait on one; those of the data "
    "loader and of the optimizer's step counters are left out"
)


@dataclass
class _Reads:
    """How often one line read by one operator, and how long that took."""

    count: int = 0
    seconds: float = 0.0


class Synchronisations(Instrument):
    """Counts reads by line over some optimizer steps, from the end of one to the end of a later one.

    Facts of topic ``synchronisations``: ``steps``; ``on_device``: whether the reads were of a device; ``sites``, the
    most often read from first: ``file``, ``line``, ``function`` (innermost outside torch), ``operator``,
    ``count_per_step``, ``seconds_per_step``, ``inside_library``, ``user_file``, ``user_line``; ``cuda_waits``:
    ``file:line`` to the waits per step that CUDA's own debug mode told; ``missing``: what cannot be seen.

    Seconds are those under the census, which makes every operator slower; on a device they hold the wait.
    """

    name = "synchronisations"

    def __init__(
        self,
        after_step: int = 3,
        steps: int = 2,
        state: Callable[[Mapping[str, Any]], None] = lambda facts: None,
    ) -> None:
        """Nothing is counted before ``start``.

        Args:
            after_step: optimizer steps that go by before, counted in this training.
            steps: that are counted.
            state: takes the facts.

        Raises:
            ValueError: a count is too small.
        """
        super().__init__()
        if after_step < 0 or steps < 1:
            raise ValueError(f"after_step is {after_step}, steps is {steps}; write at least 0 and 1")
        self._after, self._count, self._state = after_step, steps, state
        self._modes: contextlib.ExitStack | None = None
        self._thread = 0
        self._done = self._counted = 0
        self._reads: dict[tuple[Site, str], _Reads] = {}
        self._cuda: Counter[str] = Counter()
        self._on_device = False
        self._lock = threading.Lock()

    def start(self, place: Place) -> None:
        """Count at once, where no step is to go by."""
        self._done = self._counted = 0
        self._reads, self._cuda, self._on_device = {}, Counter(), False
        self._switch()

    def step_ends(self, step: int) -> None:
        """Begin or end, where it is time."""
        self._done += 1
        self._counted += self.active
        self._switch()

    def stop(self) -> None:
        """End a census that goes on, and state what it found."""
        if not self.active:
            return
        self.active = False
        modes, self._modes = self._modes, None
        if modes is not None and threading.get_ident() == self._thread:
            modes.close()
        if self._counted:
            self._state(self._facts())

    def _switch(self) -> None:
        wanted = self._after <= self._done < self._after + self._count
        if wanted and not self.active:
            self._begin()
        elif not wanted:
            self.stop()

    def _begin(self) -> None:
        modes = contextlib.ExitStack()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            self._cuda = modes.enter_context(counted_synchronisations())
            self._on_device = True
        modes.enter_context(OperatorReads(self._told))
        modes.enter_context(PythonReads(self._told))
        self._modes, self._thread, self.active = modes, threading.get_ident(), True

    def _told(self, operator: str, on_device: bool, seconds: float) -> None:
        if self._on_device and not on_device:
            return
        site = site_of_caller(on_device=on_device)
        if site is None:
            return
        with self._lock:  # the backward of a device runs in a thread of its own
            reads = self._reads.setdefault((site, operator), _Reads())
            reads.count += 1
            reads.seconds += seconds

    def _facts(self) -> dict[str, Any]:
        steps = self._counted
        ordered = sorted(self._reads.items(), key=lambda one: (-one[1].count, one[0]))
        facts: dict[str, Any] = {
            "steps": steps,
            "on_device": self._on_device,
            "sites": [
                {
                    **site._asdict(),
                    "operator": operator,
                    "count_per_step": reads.count / steps,
                    "seconds_per_step": round(reads.seconds / steps, 7),
                }
                for (site, operator), reads in ordered[:_MOST_SITES]
            ],
        }
        if self._on_device:
            facts["cuda_waits"] = {place: times / steps for place, times in self._cuda.most_common(_MOST_SITES)}
        else:
            self.notes.append(_ON_THE_HOST)
        return facts
