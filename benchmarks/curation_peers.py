"""Near duplicates as datasketch, rensa's own index and datatrove find them, with the same words, shingles and bands."""

import contextlib
import importlib.util
import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_efficient.curation.duplicates import near_duplicates, shingles, words

Finder = Callable[[Sequence[str], int, int, int, int], set[int]]
"""Texts, words of a shingle, bands, rows of a band and seed in; the rows that would be removed out."""


def ours(texts: Sequence[str], count: int, bands: int, rows: int, seed: int) -> set[int]:
    return set(near_duplicates(texts, shingle_words=count, bands=bands, rows=rows, seed=seed))


def by_datasketch(texts: Sequence[str], count: int, bands: int, rows: int, seed: int) -> set[int]:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(num_perm=bands * rows, params=(bands, rows))
    tokens = ([one.encode() for one in shingles(words(text), count)] for text in texts)
    removed = set()
    for row, sketch in enumerate(MinHash.generator(tokens, num_perm=bands * rows, seed=seed + 1)):
        if index.query(sketch):
            removed.add(row)
        index.insert(row, sketch)
    return removed


def by_rensa(texts: Sequence[str], count: int, bands: int, rows: int, seed: int) -> set[int]:
    from rensa import RMinHash, RMinHashLSH

    index = RMinHashLSH(0.5, bands * rows, bands)  # its threshold is for a check of pairs that is not asked for here
    removed = set()
    sketches = RMinHash.from_token_sets([list(shingles(words(text), count)) for text in texts], bands * rows, seed)
    for row, sketch in enumerate(sketches):
        if index.query(sketch):
            removed.add(row)
        index.insert(row, sketch)
    return removed


def by_datatrove(texts: Sequence[str], count: int, bands: int, rows: int, seed: int) -> set[int]:
    """Its three steps in this process: signatures, buckets, clusters. Numbers stay as they are, as in ours."""
    from datatrove.data import Document
    from datatrove.pipeline.dedup.minhash import (
        MinhashConfig,
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupSignature,
    )
    from datatrove.utils.hashing import HashConfig
    from datatrove.utils.text import TextNormConfig
    from datatrove.utils.word_tokenizers import WhitespaceTokenizer
    from loguru import logger

    class Words(WhitespaceTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return words(text)

    logger.remove()
    by_sha1 = HashConfig(hash_fc="sha1")  # its other way gives xxhash texts, which xxhash 4 refuses
    config = MinhashConfig(count, bands, rows, seed + 1, TextNormConfig(norm_numbers=False), by_sha1)
    documents: Any = (Document(text=text, id=str(row)) for row, text in enumerate(texts))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        places = [f"{folder}/{name}" for name in ("signatures", "buckets", "clusters")]
        MinhashDedupSignature(places[0], config, Words()).run(documents)
        for bucket in range(bands):
            MinhashDedupBuckets(places[0], places[1], config=config, lines_to_buffer=-1).run(None, bucket, bands)
        MinhashDedupCluster(places[1], places[2], config, lines_to_buffer=-1).run()
        found = Path(places[2]) / "000000.remove"
        return set(np.fromfile(found, "<u4").tolist()) if found.exists() else set()


def finders() -> dict[str, Finder]:
    """Ours, and the peers that are installed."""
    peers = {"datasketch": by_datasketch, "rensa": by_rensa, "datatrove": by_datatrove}
    return {"hf_efficient": ours, **{name: peer for name, peer in peers.items() if importlib.util.find_spec(name)}}
