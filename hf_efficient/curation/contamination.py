"""Which training rows hold an evaluation text, or a long enough part of one."""

from collections.abc import Callable, Iterable

from hf_efficient.curation.duplicates import shingles, words
from hf_efficient.errors import DataError

SHORTEST_INSIDE = 8
"""Words from which an evaluation text shorter than the n-gram counts inside a row too, and not only where it is the
whole row: the least n of Brown et al. 2020, appendix C, whose largest is the default 13."""


def contaminated(texts: Iterable[str], evaluation_texts: Iterable[str], *, ngram: int = 13) -> dict[int, str]:
    """Row to the words that it shares with an evaluation text, in lower case and without punctuation.

    A shared run of ``ngram`` words counts, and an evaluation text of fewer words as a whole. The evaluation texts alone
    are held in memory, about 70 bytes a word.

    Raises:
        DataError: ``ngram`` is below 1.
    """
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
