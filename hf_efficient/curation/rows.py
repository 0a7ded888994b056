"""Rows on their way through the stages: from the sources, in files between two stages, and as Parquet at the end."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hf_efficient.curation.duplicates import batches
from hf_efficient.data import formats
from hf_efficient.data.examples import Opened
from hf_efficient.data.sources import Row as SourceRow

_CHUNK_ROWS, _CHUNK_CHARACTERS = 500, 4_000_000  # that are in memory together
LARGEST = 10_000_000  # characters of a row: more is no text that anybody trains on


class Row(msgspec.Struct):
    """A row: ``source`` counts those of the recipe, ``example`` has the canonical columns of its layout."""

    id: str
    source: int
    where: str
    tokens: int
    example: dict[str, Any]

    @property
    def text(self) -> str:
        return text_of(self.example)


class Gone(NamedTuple):
    """Why a row is removed; rows are counted by ``reason``, ``detail`` is this one's alone."""

    reason: str
    detail: str = ""


def text_of(example: dict[str, Any]) -> str:
    """What a row is judged by: all its text but system messages, which many rows share."""
    parts = []
    for value in example.values():
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, list):
            parts += [message["content"] for message in value if message["role"] != "system"]
    return "\n".join(parts)


def count_tokens(rows: Sequence[Row], tokenizer: Any, system: str | None) -> None:
    """Set ``tokens`` of each row as it is trained on, a pair with each of its answers; 0 for an enormous row."""
    if not rows:
        return
    is_chat = any(isinstance(value, list) for value in rows[0].example.values())
    texts = ["" if len(row.text) > LARGEST else _trained_text(row.example, tokenizer, system) for row in rows]
    # A chat template writes the beginning of a sequence itself.
    for row, count in zip(rows, _counts(tokenizer, texts, add_special_tokens=not is_chat), strict=True):
        row.tokens = count


def _counts(tokenizer: Any, texts: list[str], *, add_special_tokens: bool) -> list[int]:
    """Without the ids, masks and offsets as Python's lists, which take longer than the tokens themselves."""
    if not tokenizer.is_fast:
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=add_special_tokens)["input_ids"]]
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [len(one) for one in backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]


def _trained_text(example: dict[str, Any], tokenizer: Any, system: str | None) -> str:
    end = tokenizer.eos_token or ""
    if "text" in example:
        return f"{example['text']}{end}"
    answers = [example[name] for name in ("completion", "chosen", "rejected") if name in example]
    if isinstance(example.get("prompt"), str):
        return "".join(f"{example['prompt']}{answer}{end}" for answer in answers) or str(example["prompt"])
    example = example if system is None else formats.add_system(example, system)
    chats = [example["prompt"] + answer for answer in answers] or [example.get("messages") or example["prompt"]]
    try:
        return "".join(tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats)
    except (*formats.TEMPLATE_FAULTS, ValueError):  # the run says so, if the row reaches it
        return text_of(example)


def mapped(example: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """The example with every text in it changed."""

    def one(value: Any) -> Any:
        if isinstance(value, list):
            return [{**message, "content": change(message["content"])} for message in value]
        return change(value) if isinstance(value, str) else value

    return {name: one(value) for name, value in example.items()}


def source_rows(number: int, one: Opened, rows: Iterable[SourceRow], kind: formats.Kind) -> Iterator[Row]:
    """Rows of a source, not tokenised; ``DataError`` for one that cannot be read."""
    for row in rows:
        example = formats.recast(formats.convert(row, one.format), kind, row.where)
        name = f"{number}\n{row.where}\n{text_of(example)}"
        yield Row(hashlib.blake2b(name.encode(), digest_size=8).hexdigest(), number, row.where, 0, example)


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    return batches(rows, lambda row: len(row.text), _CHUNK_ROWS, _CHUNK_CHARACTERS)


def order_of(seed: int, *parts: object) -> int:
    """64 bits that stay the same from run to run."""
    text = "\n".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(Row)


def encoded(rows: Iterable[Row]) -> bytes:
    return b"".join(_ENCODER.encode(row) + b"\n" for row in rows)


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    for path in paths:
        with path.open("rb") as file:
            for line in file:
                yield _DECODER.decode(line)


def write_parquet(
    path: Path, rows: Iterable[Row], kind: formats.Kind, names: Sequence[str]
) -> dict[int, tuple[int, int]]:
    """Rows with ``id``, ``source`` (of ``names``), ``where``, ``tokens``; returns rows and tokens of each source."""
    path.parent.mkdir(parents=True)
    own = [pa.field("id", pa.string()), pa.field("source", pa.string()), pa.field("tokens", pa.int64())]
    schema = pa.schema([*formats.features_of(kind).arrow_schema, *own])
    sums = dict.fromkeys(range(len(names)), (0, 0))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for chunk in chunks(rows):
            values = []
            for row in chunk:
                told = {"where": row.where, "id": row.id, "source": names[row.source], "tokens": row.tokens}
                values.append({**row.example, **told})
                count, tokens = sums[row.source]
                sums[row.source] = count + 1, tokens + row.tokens
            writer.write_table(pa.Table.from_pylist(values, schema=schema))
    return sums
