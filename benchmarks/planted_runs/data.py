"""Data sets and collators that are as they should be.

What the runs train on, from this Python's own standard library: a tokenizer, its docstrings, its sources.

tokenizer.json     byte-level BPE of 4096 tokens, trained on the docstrings
examples.json      lists of token ids, one per docstring with its request
texts.json         the same as ``prompt`` and ``completion``
rows.npy           the examples joined, cut into rows of 128 tokens; int64 (rows, 128)
documents.json     the longest modules, as text
"""

import difflib
import http.client
import json
import random
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hf_efficient.data.docstrings import build_docstring_chats

VOCABULARY = 4096
ROW_TOKENS = 128
END = "<|end|>"
_DOCUMENT_BYTES = range(40_000, 120_000)


def make_corpus(folder: Path) -> None:
    """Fill the folder, once."""
    if (folder / "documents.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    chats = build_docstring_chats()
    random.Random(0).shuffle(chats)
    pairs = [
        {"prompt": one["prompt"][0]["content"] + "\n\n", "completion": one["completion"][0]["content"]} for one in chats
    ]
    trained = train_tokenizer([one["prompt"] + one["completion"] for one in pairs])
    trained.save(str(folder / "tokenizer.json"))
    encoded = trained.encode_batch([one["prompt"] + one["completion"] + END for one in pairs])
    ids = [one.ids for one in encoded]
    joined = np.concatenate([np.asarray(one, dtype=np.int64) for one in ids])
    count = len(joined) // ROW_TOKENS
    np.save(folder / "rows.npy", joined[: count * ROW_TOKENS].reshape(count, ROW_TOKENS))
    (folder / "examples.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "texts.json").write_text(json.dumps(pairs), encoding="utf-8")
    (folder / "documents.json").write_text(json.dumps(_documents()), encoding="utf-8")


def read_rows(folder: Path) -> npt.NDArray[np.int64]:
    """Rows of ``ROW_TOKENS`` tokens."""
    found: npt.NDArray[np.int64] = np.load(folder / "rows.npy")
    return found


def examples(folder: Path) -> list[list[int]]:
    """Token ids of every example, between 30 and some hundreds each."""
    found: list[list[int]] = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
    return found


def texts(folder: Path) -> list[dict[str, str]]:
    """``prompt`` and ``completion`` of every example."""
    found: list[dict[str, str]] = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
    return found


def tokenizer(folder: Path) -> Any:
    """A fast tokenizer of transformers."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token=END, pad_token=END)


def train_tokenizer(lines: list[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        lines,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


def _documents() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(
        path for path in root.rglob("*.py") if "site-packages" not in path.parts and "test" not in path.parts
    )
    return [
        path.read_text(encoding="utf-8", errors="replace") for path in paths if path.stat().st_size in _DOCUMENT_BYTES
    ]


def row_of(ids: Any) -> dict[str, torch.Tensor]:
    """A row without padding, all of which is learnt."""
    tokens = torch.as_tensor(ids)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows of one length."""

    def __init__(self, corpus: Path, count: int | None = None, skip: int = 0, join: int = 1) -> None:
        """Take so many of the corpus's rows.

        Args:
            corpus: its folder.
            count: how many; None: all.
            skip: so many from the start.
            join: so many of the corpus's rows make one.
        """
        rows = read_rows(corpus)
        rows = rows[: len(rows) // join * join].reshape(-1, rows.shape[1] * join)
        self.rows = rows[skip : None if count is None else skip + count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return row_of(self.rows[index])


class Examples(Dataset[dict[str, list[int]]]):
    """Examples as long as they are; every ``long_every``-th is several of them joined."""

    def __init__(self, corpus: Path, count: int, long_every: int | None = None, joined: int = 6) -> None:
        """Take the first of the corpus.

        Args:
            corpus: its folder.
            count: how many.
            long_every: None: none is joined.
            joined: how many make a long one.
        """
        held = examples(corpus)
        self.ids: list[list[int]] = []
        place = 0
        for number in range(count):
            several = joined if long_every and number % long_every == 0 else 1
            self.ids.append([token for one in held[place : place + several] for token in one])
            place = (place + several) % (len(held) - joined)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.ids[index]}


class Padding:
    """Pads rows to the longest of the batch."""

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """``input_ids``, ``attention_mask`` and ``labels``, int64 (rows, longest)."""
        ids = [torch.as_tensor(row["input_ids"]) for row in rows]
        pad = torch.nn.utils.rnn.pad_sequence
        ones = [torch.ones_like(one) for one in ids]
        return {
            "input_ids": pad(ids, batch_first=True),
            "attention_mask": pad(ones, batch_first=True),
            "labels": pad(ids, batch_first=True, padding_value=-100),
        }


class StoredRows(Dataset[dict[str, torch.Tensor]]):
    """Rows of a store that answers after a while: whoever reads waits, and computes nothing."""

    def __init__(self, server: str, count: int, seconds: float) -> None:
        """Nothing is read yet; each process that reads has a connection of its own.

        Args:
            server: ``HOST:PORT``.
            count: rows that it has.
            seconds: until it answers.
        """
        self._server, self._count, self._seconds = server, count, seconds
        self._connection: http.client.HTTPConnection | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._server)
        self._connection.request("GET", f"/rows/{index}?wait={self._seconds}")
        return row_of(np.frombuffer(bytearray(self._connection.getresponse().read()), dtype=np.int64))


class Documents(Dataset[str]):
    """Whole documents, as text."""

    def __init__(self, corpus: Path, count: int | None = None) -> None:
        """Read so many; None: all."""
        held: list[str] = json.loads((corpus / "documents.json").read_text(encoding="utf-8"))
        self.texts = held[:count]

    def __len__(self) -> int:
        return 4 * len(self.texts)

    def __getitem__(self, index: int) -> str:
        return self.texts[index % len(self.texts)]


class TokenisedOnAccess(Dataset[dict[str, torch.Tensor]]):
    """Whole documents are tokenised whenever one is asked for, and cut to a row afterwards."""

    def __init__(self, corpus: Path) -> None:
        """Read documents and tokenizer."""
        self._documents, self._tokenizer = Documents(corpus), tokenizer(corpus)

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return row_of(self._tokenizer(self._documents[index])["input_ids"][:ROW_TOKENS])


class Typos(Dataset[dict[str, torch.Tensor]]):
    """Text with typing errors, put in until it is far enough from the original: an augmentation in Python."""

    def __init__(self, corpus: Path, characters: int) -> None:
        """Read the documents.

        Args:
            corpus: its folder.
            characters: of each document that are compared.
        """
        self._documents = [document[:characters] for document in Documents(corpus).texts]
        self._tokenizer = tokenizer(corpus)

    def __len__(self) -> int:
        return 4 * len(self._documents)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        document, chance = self._documents[index % len(self._documents)], random.Random(index)
        typed = document
        while difflib.SequenceMatcher(None, document, typed, autojunk=False).ratio() > 0.99:
            places = set(chance.sample(range(len(document)), len(document) // 50))
            signs = "abcdefghijklmnopqrstuvwxyz"
            typed = "".join(chance.choice(signs) if at in places else sign for at, sign in enumerate(document))
        return row_of(self._tokenizer(typed)["input_ids"][:ROW_TOKENS])


class TokenisesBatches:
    """A collator that is given whole documents, tokenises them, and cuts them to a row."""

    def __init__(self, corpus: Path) -> None:
        """Read the tokenizer."""
        self._tokenizer = tokenizer(corpus)

    def __call__(self, documents: Sequence[str]) -> dict[str, torch.Tensor]:
        """Int64 (rows, tokens of a row)."""
        rows = [row_of(self._tokenizer(document)["input_ids"][:ROW_TOKENS]) for document in documents]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class MaskedRows(Rows):
    """One label in sixty-four is left."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        kept = torch.arange(len(row["labels"])) % 64 == 63
        return {**row, "labels": torch.where(kept, row["labels"], -100)}


class SomeUnlabelled(Rows):
    """Every sixth row has no label at all."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        return row if index % 6 else {**row, "labels": torch.full_like(row["labels"], -100)}
