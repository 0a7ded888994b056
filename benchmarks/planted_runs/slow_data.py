"""Data sets and collators that are slow, each in its own way."""

from __future__ import annotations

import difflib
import http.client
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from planted_runs.corpus import ROW_TOKENS, tokenizer
from planted_runs.data import row_of

__all__ = ["Documents", "StoredRows", "TokenisedOnAccess", "TokenisesBatches", "Typos"]


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
