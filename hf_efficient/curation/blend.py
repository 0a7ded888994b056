"""How often each row is in the data set, and in which order."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from hf_efficient.curation.rows import Row, order_of, read_rows
from hf_efficient.recipe.schema import BlendSection

_BUCKET_BYTES = 64 << 20  # of rows that are sorted in memory together
_MOST_BUCKETS = 500  # files that are open together
_ORDERS = 1 << 64


class _Placed(msgspec.Struct):
    order: int
    row: Row


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(_Placed)


def epochs_of(blend: BlendSection, weights: Sequence[float], tokens: Sequence[int]) -> list[float]:
    """How often each row of a source is seen. By temperature T the share of a source with n tokens is n^(1/T) of the
    sum of all, and the data set has as many tokens as without it."""
    if blend.temperature is None:
        return list(weights)
    scaled = [count ** (1 / blend.temperature) for count in tokens]
    total, parts = sum(tokens), sum(scaled)
    return [total * one / parts / count if count else 0.0 for one, count in zip(scaled, tokens, strict=True)]


def copies(row: Row, epochs: Sequence[float], seed: int) -> int:
    """How often a row is in the data set: whole epochs, and for the rest of one the rows with the lowest hashes."""
    whole, rest = divmod(epochs[row.source], 1)
    return int(whole) + (order_of(seed, "part", row.id) / _ORDERS < rest)


def blended(rows: Sequence[Path], epochs: Sequence[float], seed: int) -> Iterator[Row]:
    """Each row as often as its source asks: whole copies, and of the rest of an epoch the rows with the lowest hashes.
    In the order of a hash of seed, row and copy, by buckets that fit into memory; it knows nothing of their number."""
    count = min(-(-sum(path.stat().st_size for path in rows) // _BUCKET_BYTES), _MOST_BUCKETS)
    with tempfile.TemporaryDirectory(dir=rows[0].parent) as folder, ExitStack() as opened:
        paths = [Path(folder) / str(number) for number in range(count)]
        files = [opened.enter_context(path.open("wb")) for path in paths]
        for row in read_rows(rows):
            for copy in range(copies(row, epochs, seed)):
                order = order_of(seed, "order", row.id, copy)
                files[order * count // _ORDERS].write(_ENCODER.encode(_Placed(order, row)) + b"\n")
        opened.close()
        for path in paths:
            with path.open("rb") as file:
                placed = sorted((_DECODER.decode(line) for line in file), key=lambda one: one.order)
            yield from (one.row for one in placed)
