"""What the data loader did, added up over the steps of rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from hf_efficient.account.nanoseconds import add_ns, in_seconds, sum_ns
from hf_efficient.account.processes import ProcessSpans
from hf_efficient.account.step_lines import StepLine
from hf_efficient.estimate.sums import sum_if_known
from hf_efficient.records import LoaderAccount, StepLoader

__all__ = ["LOADER_SECONDS", "LoaderSums", "loader_account"]

LOADER_SECONDS = tuple(name for name in StepLoader.__struct_fields__ if name.endswith("_seconds"))


@dataclass
class LoaderSums:
    """See ``StepLoader``: the same over many steps.

    Attributes:
        steps: whose loader was watched.
        epochs: of them, those in which an epoch was started.
        batches, bytes, fetched, read_bytes, rows: as there.
        asked: batches that were asked for while workers loaded.
        ready: those that lay ready then.
        ns: the times, by name.
    """

    steps: int = 0
    epochs: int = 0
    batches: int = 0
    bytes: int = 0
    fetched: int = 0
    read_bytes: int = 0
    asked: int = 0
    ready: int = 0
    rows: int | None = 0
    ns: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Sequence[StepLine]) -> LoaderSums:
        """Of some steps; those whose loader was not watched are left out."""
        parts = [line.loader for line in lines if line.loader is not None]
        with_workers = [part for part in parts if part.ready is not None]
        return cls(
            steps=len(parts),
            epochs=sum([part.start_seconds > 0 for part in parts]),
            batches=sum([part.batches for part in parts]),
            bytes=sum([part.bytes for part in parts]),
            fetched=sum([part.fetched for part in parts]),
            read_bytes=sum([part.read_bytes for part in parts]),
            asked=sum([part.batches for part in with_workers]),
            ready=sum([part.ready or 0 for part in with_workers]),
            rows=sum_if_known([part.rows for part in parts]),
            ns={name: sum_ns(map(read, parts)) for name, read in _READ_SECONDS.items()} if parts else {},
        )

    def merge(self, later: LoaderSums) -> None:
        """Take in the steps that follow."""
        for name in ("steps", "epochs", "batches", "bytes", "fetched", "read_bytes", "asked", "ready"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.rows = None if self.rows is None or later.rows is None else self.rows + later.rows
        add_ns(self.ns, later.ns)

    @property
    def mean_ready(self) -> float | None:
        """Batches that lay ready when one was asked for; None where no workers loaded."""
        return self.ready / self.asked if self.asked else None


_READ_SECONDS = {name: attrgetter(name) for name in LOADER_SECONDS}


def loader_account(processes: Sequence[ProcessSpans], sums: Sequence[LoaderSums]) -> LoaderAccount | None:
    """The loader of rank 0; None where it was watched in no step.

    Args:
        processes: of rank 0; the last one that stated its loader is told.
        sums: of its ``train()`` calls.
    """
    whole = LoaderSums()
    for one in sums:
        whole.merge(one)
    if not whole.steps:
        return None
    facts: Mapping[str, Any] = next((one.facts["loader"] for one in reversed(processes) if "loader" in one.facts), {})
    return LoaderAccount(
        steps=whole.steps,
        epochs=whole.epochs,
        batches=whole.batches,
        rows=whole.rows,
        bytes=whole.bytes,
        fetched=whole.fetched,
        read_bytes=whole.read_bytes,
        mean_ready=whole.mean_ready,
        workers=facts.get("workers"),
        prefetch_factor=facts.get("prefetch_factor"),
        persistent_workers=facts.get("persistent_workers"),
        pin_memory=facts.get("pin_memory"),
        **in_seconds(whole.ns),
    )
