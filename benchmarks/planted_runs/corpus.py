"""What the runs train on, from this Python's own standard library: a tokenizer, its docstrings, its sources.

tokenizer.json     byte-level BPE of 4096 tokens, trained on the docstrings
examples.json      lists of token ids, one per docstring with its request
texts.json         the same as ``prompt`` and ``completion``
rows.npy           the examples joined, cut into rows of 128 tokens; int64 (rows, 128)
documents.json     the longest modules, as text
"""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hf_efficient.data.docstrings import build_docstring_chats

__all__ = ["END", "ROW_TOKENS", "VOCABULARY", "examples", "make_corpus", "read_rows", "texts", "tokenizer"]

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
    trained = _train_tokenizer([one["prompt"] + one["completion"] for one in pairs])
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


def _train_tokenizer(lines: list[str]) -> Any:
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
