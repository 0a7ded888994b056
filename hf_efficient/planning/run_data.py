"""What the plan tells of the run's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_efficient.data.build import PreferenceData, SftData
from hf_efficient.data.prepare import is_packed
from hf_efficient.data.stats import document_lengths
from hf_efficient.planning.batchings import batchings
from hf_efficient.planning.run_shapes import RunShapes, batching_of, rows_of
from hf_efficient.records.plan import PlannedData

if TYPE_CHECKING:
    from trl import SFTConfig


def planned_data(args: SFTConfig, data: SftData | PreferenceData, shapes: RunShapes, processes: int) -> PlannedData:
    """The examples, their padding, and the batches that they could make instead.

    Args:
        args: of the run.
        data: of the run.
        shapes: of the run.
        processes: that train side by side.
    """
    if isinstance(data, PreferenceData):
        return _of_pairs(args, data, shapes)
    documents = document_lengths(data.train)
    kinds = []
    if not is_cut(args, data):
        how = batching_of(args, processes)
        kinds = batchings(documents, how, packed=is_packed(args, "train"), max_length=args.max_length, seed=args.seed)
    return PlannedData(
        examples=data.stats.examples,
        tokens=data.stats.tokens_total,
        longest_tokens=int(documents.max()),
        padding_share=shapes.train.padding_share,
        evaluation_rows=0 if data.eval is None else len(data.eval),
        evaluations=shapes.evaluations,
        batchings=kinds,
    )


def _of_pairs(args: SFTConfig, data: PreferenceData, shapes: RunShapes) -> PlannedData:
    pairs = rows_of(data, args).train
    return PlannedData(
        examples=len(pairs),
        tokens=int(pairs.sum()),
        longest_tokens=int(pairs.max()),
        padding_share=shapes.train.padding_share,
        evaluation_rows=0 if data.eval is None else len(data.eval),
        evaluations=shapes.evaluations,
    )


def is_cut(args: SFTConfig, data: SftData) -> bool:
    """Whether packs were made without regard to where an example ends, so that nobody knows how long each was."""
    return is_packed(args, "train") and "seq_lengths" not in data.train.column_names
