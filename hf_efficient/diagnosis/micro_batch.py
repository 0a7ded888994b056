"""What a micro-batch costs by itself, and what larger ones would save."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_efficient.diagnosis.case import Case, Column
from hf_efficient.diagnosis.memory_room import memory_room, position_bytes
from hf_efficient.diagnosis.padding import grouped_padding_share, mixed_padding_share
from hf_efficient.estimate.batch_time import batch_time

__all__ = ["MOST_TIMES", "MicroBatch", "fitting_times", "micro_batch", "padding_growth"]

MOST_TIMES = 16
_SORTED = 0.8


@dataclass(frozen=True)
class MicroBatch:
    """The mean micro-batch of rank 0 after warm-up.

    Attributes:
        rows: asked for by ``per_device_train_batch_size``.
        accumulated: micro-batches of a step.
        tokens: positions, padding included.
        seconds: of forward and backward.
        fixed_seconds: of them, what does not grow with the tokens.
        around_seconds: of the Trainer's own work between micro-batches, which larger ones pay less often too.
    """

    rows: int
    accumulated: int
    tokens: float
    seconds: float
    fixed_seconds: float
    around_seconds: float

    @property
    def fixed_share(self) -> float:
        """Of its own time."""
        return self.fixed_seconds / self.seconds if self.seconds > 0 else 0.0

    def saved_share(self, times: int, growth: float) -> float:
        """Of the time of micro-batch and work around it, where one of so many times the rows takes their place.

        Hand-worked: 1.0 s of which 0.6 s fixed, nothing around; 4 times the rows, a tenth more positions for the same
        tokens: 0.6 / 4 + 0.4 * 1.1 = 0.59 s; 0.41 are saved.

        Args:
            times: the rows.
            growth: positions for the same tokens, through padding, against those of now.
        """
        now = self.seconds + self.around_seconds
        if now <= 0:
            return 0.0
        then = (self.fixed_seconds + self.around_seconds) / times + (self.seconds - self.fixed_seconds) * growth
        return 1 - then / now


def micro_batch(case: Case) -> MicroBatch | None:
    """None where the fixed part cannot be told.

    Too few steps; their tokens hardly differ; or they come sorted, so that a machine that slows down or speeds up looks
    like a line over tokens (examples grouped by length, in a run of few stretches).
    """
    first = case.first
    if first is None:
        return None
    steady = first.steady
    if _sorted(first.processed[steady]):
        return None
    counts = np.maximum(first.micro_batches[steady], 1)
    line = batch_time(first.compute_seconds[steady] / counts, first.processed[steady] / counts)
    if line is None:
        return None
    micro_batches = float(counts.mean())
    seconds = float(first.compute_seconds[steady].mean()) / micro_batches
    return MicroBatch(
        rows=int(case.argument("per_device_train_batch_size") or 1),
        accumulated=int(case.argument("gradient_accumulation_steps") or 1),
        tokens=float(first.processed[steady].mean()) / micro_batches,
        seconds=seconds,
        fixed_seconds=min(line.fixed_seconds, seconds),
        around_seconds=float(first.phase("bookkeeping")[steady].mean()) / micro_batches,
    )


def _sorted(tokens: Column) -> bool:
    known = tokens[np.isfinite(tokens)]
    if len(known) < 2 or known.std() == 0:
        return False
    return bool(abs(np.corrcoef(known, np.arange(len(known)))[0, 1]) > _SORTED)


def padding_growth(case: Case, rows: int, times: int, *, grouped: bool = False) -> float:
    """Positions for the same tokens where a micro-batch has so many times the rows, against those of now.

    1 where rows hold more than one document (packing), or the lengths are not known.

    Args:
        case: the run.
        rows: of now.
        times: how many times the rows.
        grouped: whether examples of like length are put together, as they are not now.
    """
    sequences = case.account.sequences
    packed = bool(sequences.rows) and (sequences.samples or 0) > 1.05 * (sequences.rows or 0)
    grouped = grouped or case.argument("train_sampling_strategy") == "group_by_length"
    share = grouped_padding_share if grouped else mixed_padding_share
    then = None if packed else share(sequences.length_buckets, rows * times)
    if then is None:
        return 1.0
    return (1 - (case.account.tokens.padding_share or 0.0)) / (1 - then)


def fitting_times(case: Case, most: int) -> int | None:
    """The largest power of two by which the rows of a micro-batch can grow into idle memory; 1: they cannot.

    None where the memory is not known.

    Args:
        case: the run.
        most: no more than this.
    """
    room, each = memory_room(case), position_bytes(case)
    if room is None or each is None:
        return None
    of_one, positions = each
    times = 1
    while 2 * times <= most and (2 * times - 1) * of_one * positions <= room.fillable_bytes:
        times *= 2
    return times
