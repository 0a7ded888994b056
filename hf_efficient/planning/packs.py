"""The packs that TRL makes of examples, by their lengths alone."""

from __future__ import annotations

from typing import TypeAlias

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hf_efficient.data.prepare import progress_bars

Lengths: TypeAlias = npt.NDArray[np.int64]
"""Tokens of each row, shape (rows,)."""


def packs(documents: Lengths, max_length: int) -> Lengths:
    """Tokens of each pack that TRL makes of examples, best fit decreasing, shape (packs,)."""
    from trl import pack_dataset

    ends = np.concatenate([[0], np.cumsum(documents)])
    tokens = pa.LargeListArray.from_arrays(pa.array(ends), pa.array(np.zeros(ends[-1], dtype=np.int8)))
    with progress_bars(len(documents)):
        packed = pack_dataset(datasets.Dataset(pa.table({"input_ids": tokens})), max_length, "bfd")
    return np.array([sum(row) for row in packed["seq_lengths"]], dtype=np.int64)
