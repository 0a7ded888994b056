"""What a prepared data set holds, counted from its Arrow columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import datasets
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hf_efficient.records.amounts import AnswerLengths

_BATCH = 10_000


@dataclass(frozen=True)
class DataStats:
    """``examples``: before packing. ``dropped_masked``: left out because all their labels are -100 (after truncation);
    ``masked``: kept although they have no target token. ``longest``: tokens of the longest example, before any
    truncation. ``fill_rate``: share of the packs' places (packs times max_length) that hold a token. ``empty``: those
    whose text, completion or last answer is blank, before any is left out. ``small_sources``: of sources with fewer
    than ten training examples, their number by key (``data.train.0``)."""

    examples: int
    dropped_overlong: int
    truncated: int
    dropped_masked: int
    masked: int
    tokens_total: int
    target_tokens: int
    longest: int
    packs: int | None = None
    fill_rate: float | None = None
    empty: int = 0
    small_sources: dict[str, int] | None = None
    largest_token_id: int = -1


@dataclass(frozen=True)
class LeftOut:
    """Rows that a run does not train on, and the place of the first."""

    why: str
    rows: int
    first: str


def lengths(dataset: datasets.Dataset, column: str = "input_ids") -> npt.NDArray[np.int64]:
    return _joined([_sizes(table[column]) for table in _tables(dataset, [column])])


def document_lengths(dataset: datasets.Dataset) -> npt.NDArray[np.int64]:
    """Tokens per document, shape (documents,); a row is one where no ``seq_lengths`` divides it."""
    if "seq_lengths" not in dataset.column_names:
        return lengths(dataset)
    return _joined([_numbers(table["seq_lengths"]) for table in _tables(dataset, ["seq_lengths"])])


_ANSWERS = (("chosen_ids", "rejected_ids"), ("chosen_input_ids", "rejected_input_ids"), ("completion_ids",))


def answer_columns(dataset: datasets.Dataset) -> tuple[str, ...]:
    """Where a preference data set holds its answers, two of a pair; ``preference.py`` says which trainer has which."""
    return next(columns for columns in _ANSWERS if columns[0] in dataset.column_names)


def answer_lengths(dataset: datasets.Dataset, max_length: int | None) -> npt.NDArray[np.int64]:
    """Tokens of prompt and answer, cut to ``max_length``, of each answer to compare, shape (rows, 2) or (rows, 1)."""
    prompt = lengths(dataset, "prompt_ids") if "prompt_ids" in dataset.column_names else 0
    both = np.stack([prompt + lengths(dataset, column) for column in answer_columns(dataset)], axis=1)
    return both if max_length is None else np.minimum(both, max_length)


def compared_lengths(dataset: datasets.Dataset, max_length: int | None) -> AnswerLengths | None:
    held = answer_lengths(dataset, max_length).astype(float)
    prompt = next((name for name in ("prompt_ids", "prompt_input_ids") if name in dataset.column_names), None)
    if prompt is not None:
        held = np.maximum(held - lengths(dataset, prompt)[:, None], 0)
    if held.shape[1] == 2:
        chosen, rejected = held.T
        return AnswerLengths(float(chosen.mean()), float(rejected.mean()), float((chosen > rejected).mean()))
    good = np.asarray(dataset["label"], dtype=bool)
    if good.all() or not good.any():
        return None
    return AnswerLengths(float(held[good].mean()), float(held[~good].mean()))


def target_counts(dataset: datasets.Dataset, by_document: bool = False) -> npt.NDArray[np.int64]:
    """Target tokens per row, shape (rows,), or per document of the packs, shape (documents,). Labels other than -100,
    without the first of each row or document (``seq_lengths``): nothing before it predicts it."""
    columns = [name for name in ("labels", "seq_lengths") if name in dataset.column_names]
    return _joined([_targets(table, by_document) for table in _tables(dataset, columns)])


def largest_token_id(dataset: datasets.Dataset, columns: Sequence[str] = ("input_ids",)) -> int:
    """The largest number in the columns, which are lists of token ids; -1 where they hold none."""
    found = (pc.max(_flat(table[name])).as_py() for table in _tables(dataset, columns) for name in columns)
    return max((token for token in found if token is not None), default=-1)


def _targets(table: pa.Table, by_document: bool) -> npt.NDArray[np.int64]:
    rows = _sizes(table["labels"])
    documents = _numbers(table["seq_lengths"]) if "seq_lengths" in table.column_names else rows
    is_target = _flat(table["labels"]).to_numpy(zero_copy_only=False) != -100
    is_target[(np.cumsum(documents) - documents)[documents > 0]] = False
    sizes = documents if by_document else rows
    sums, ends = np.concatenate([[0], np.cumsum(is_target)]), np.cumsum(sizes)
    return sums[ends] - sums[ends - sizes]


def _tables(dataset: datasets.Dataset, columns: Sequence[str]) -> Iterator[pa.Table]:
    yield from dataset.select_columns(list(columns)).with_format("arrow").iter(_BATCH)


def _joined(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _sizes(lists: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return lists.combine_chunks().value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)


def _numbers(lists: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return _flat(lists).to_numpy(zero_copy_only=False).astype(np.int64)


def _flat(lists: pa.ChunkedArray) -> pa.Array:
    return lists.combine_chunks().flatten()
