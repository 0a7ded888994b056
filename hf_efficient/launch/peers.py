"""The other machines of a run: one that is gone is noticed before the half hour is over that a collective waits.

A process that waits in a collective waits in C, for ``train.ddp_timeout`` (1,800 s), and neither gloo nor NCCL learns
of a cable that was pulled. So a thread of the first process of each machine counts in the store that the launcher keeps
on machine 0, and looks whether the others count.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Protocol

from hf_efficient.launch.engines.started import started_nodes

__all__ = ["PeerWatch", "Silence", "watch_peers"]

logger = logging.getLogger(__name__)

BEAT_SECONDS = 3.0
SILENT_SECONDS = 20.0
"""Longer than a busy machine pauses, and short enough that the launcher, which gives the processes that it ends another
thirty seconds, is through within a minute."""


class Silence(Exception):
    """A machine is no longer heard of; ``str`` says which, and for how long."""


class Store(Protocol):
    """What is needed of ``torch.distributed.TCPStore``."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: list[str]) -> bool: ...


class PeerWatch:
    """Counts for this machine, and listens to the others."""

    def __init__(
        self,
        store: Store,
        node: int,
        nodes: int,
        now: Callable[[], float] = time.monotonic,
        met: Callable[[], bool] = lambda: False,
    ) -> None:
        """Nobody has been heard of; all are given time from here on.

        Args:
            store: shared by all.
            node: number of this machine.
            nodes: how many there are.
            now: a monotonic clock, in seconds.
            met: whether the processes of all machines have joined this start's process group.
        """
        self._store, self._node, self._nodes, self._now, self._met = store, node, nodes, now, met
        self._count = 0
        self._lock = threading.Lock()
        # What the others have counted so far may be left from an earlier start of theirs: it must change first.
        self._heard: dict[int, tuple[bytes, float | None]] = {
            peer: (store.get(f"peer/{peer}"), None)
            for peer in range(nodes)
            if peer != node and store.check([f"peer/{peer}"])
        }
        store.set(f"peer/{node}", f"{time.time_ns()} began")
        store.set(f"peer/{node}/host", socket.gethostname())

    def beat(self) -> None:
        """Count once, and look at the others.

        Raises:
            Silence: of one of them nothing has been heard for too long, or the store is out of reach.
        """
        began = self._now()
        try:
            with self._lock:
                if self._count < 0:
                    return
                self._count += 1
                self._store.set(f"peer/{self._node}", str(self._count))
            others = [node for node in range(self._nodes) if node != self._node]
            told = {node: self._store.get(f"peer/{node}") for node in others if self._store.check([f"peer/{node}"])}
        except Exception as error:  # the store raises its own kinds of RuntimeError
            raise Silence(f"machine 0 does not answer ({type(error).__name__}, {self._now() - began:.0f} s)") from error
        met = self._met()
        for node, count in told.items():
            self._listen(node, count, met)

    def _listen(self, node: int, count: bytes, met: bool) -> None:
        known, since = self._heard.get(node, (None, None))
        if count == b"done":
            return
        if count != known or (met and since is None):  # who has been met was there, though he never counts again
            self._heard[node] = (count, self._now())
        elif since is not None and self._now() - since > SILENT_SECONDS:
            host = self._store.get(f"peer/{node}/host").decode(errors="replace")
            raise Silence(f"machine {node} ({host}) has not been heard of for {self._now() - since:.0f} s")

    def done(self) -> None:
        """This machine ends as it should; the others do not miss it."""
        with self._lock:
            self._count = -1
            self._store.set(f"peer/{self._node}", "done")

    def see_off(self, patience_seconds: float, look_every: float = 0.2) -> None:
        """Wait until all others end as they should, for whom the store has to be there so long.

        Args:
            patience_seconds: at most.
            look_every: seconds between two looks.
        """
        until = self._now() + patience_seconds
        others = [f"peer/{node}" for node in range(self._nodes) if node != self._node]
        while any(self._store.check([one]) and self._store.get(one) != b"done" for one in others):
            if self._now() > until:
                return
            time.sleep(look_every)


def watch_peers(environment: Mapping[str, str], leave: Callable[[str], Any]) -> Callable[[], None]:
    """Watch the other machines from a thread, where there are any; returns what ends that.

    Args:
        environment: of this process, as torchrun made it.
        leave: is told why the process must end, from the thread: the one that trains may never run again.
    """
    nodes = started_nodes(environment)
    if nodes < 2 or int(environment.get("LOCAL_RANK", "0")) != 0 or "GROUP_RANK" not in environment:
        return lambda: None
    import torch.distributed
    from torch.distributed import TCPStore

    store = TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=SILENT_SECONDS),
        wait_for_workers=False,
    )
    watch = PeerWatch(store, int(environment["GROUP_RANK"]), nodes, met=torch.distributed.is_initialized)
    ended = threading.Event()
    answered = [time.monotonic()]

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            try:
                watch.beat()
            except Silence as silence:
                if not ended.is_set():
                    leave(str(silence))
                return
            answered[0] = time.monotonic()

    def look() -> None:
        """A store behind a cut cable does not even fail: whoever asks it waits."""
        looked = time.monotonic()
        while not ended.wait(BEAT_SECONDS):
            before, looked = looked, time.monotonic()
            if looked - before > 2 * BEAT_SECONDS:  # this process itself was held up
                answered[0] = looked
            silent = looked - answered[0]
            if silent > SILENT_SECONDS:
                leave(f"machine 0 ({environment['MASTER_ADDR']}) has not answered for {silent:.0f} s")
                return

    def end() -> None:
        ended.set()
        try:
            watch.done()
            if environment.get("RANK") == "0" and environment.get("TORCHELASTIC_USE_AGENT_STORE") != str(True):
                watch.see_off(SILENT_SECONDS)  # it ends with this process
        except RuntimeError as error:
            logger.info("machine 0 has ended before this one could say good-bye (%s)", error)

    for work in (beat, look):
        threading.Thread(target=work, name=f"machines: {work.__name__}", daemon=True).start()
    return end
