"""Data sets and collators that are slow, each in its own way."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from planted_runs.corpus import ROW_TOKENS, tokenizer
from planted_runs.data import row_of

__all__ = ["StoredRows", "TokenByToken", "TokenisedOnAccess", "Typos"]


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


class TokenisedOnAccess(Dataset[dict[str, torch.Tensor]]):
    """Whole documents are tokenised whenever one is asked for, and cut to a row afterwards."""

    def __init__(self, corpus: Path) -> None:
        self._documents: list[str] = json.loads((corpus / "documents.json").read_text(encoding="utf-8"))
        self._tokenizer = tokenizer(corpus)

    def __len__(self) -> int:
        return 4 * len(self._documents)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self._tokenizer(self._documents[index % len(self._documents)])["input_ids"]
        return row_of(ids[:ROW_TOKENS])


class Typos(Dataset[dict[str, torch.Tensor]]):
    """Text with typing errors put in character by character, in Python, then tokenised: an augmentation."""

    def __init__(self, corpus: Path, characters: int) -> None:
        """Read the documents.

        Args:
            corpus: its folder.
            characters: of each document that are gone through.
        """
        held = json.loads((corpus / "documents.json").read_text(encoding="utf-8"))
        self._documents: list[str] = [document[:characters] for document in held]
        self._tokenizer = tokenizer(corpus)

    def __len__(self) -> int:
        return 4 * len(self._documents)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        chance, typed = random.Random(index), []
        for character in self._documents[index % len(self._documents)]:
            if character.isalpha() and chance.random() < 0.02:
                character = chance.choice("abcdefghijklmnopqrstuvwxyz")
            typed.append(character)
        return row_of(self._tokenizer("".join(typed)[: 8 * ROW_TOKENS])["input_ids"][:ROW_TOKENS])


class TokenByToken:
    """A collator that looks at every token by itself: it is decoded, and white space and signs are not learnt."""

    def __init__(self, corpus: Path) -> None:
        self._tokenizer = tokenizer(corpus)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.stack([row["input_ids"] for row in rows])
        labels = torch.full_like(ids, -100)
        for row in range(ids.shape[0]):
            for place in range(ids.shape[1]):
                if any(sign.isalnum() for sign in self._tokenizer.decode([int(ids[row, place])])):
                    labels[row, place] = ids[row, place]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
