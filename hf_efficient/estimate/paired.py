"""The same examples answered twice: is the second answer better?"""

import math
from collections.abc import Sequence

import numpy as np

from hf_efficient.records.task_scores import PairedTest

_RESAMPLES = 10_000
_AT_ONCE = 1_000


def paired_test(before: Sequence[float], after: Sequence[float]) -> PairedTest | None:
    """The difference of two means over the same examples; None of fewer than two.

    Scores of 0 and 1: McNemar's exact test (McNemar, 1947, doi 10.1007/BF02295996). Others: a sign-flipping
    permutation test of the mean difference, 10,000 flips (Good, 2005, section 3.2). The interval is the percentile
    bootstrap's, 10,000 resamples of the examples (Efron and Tibshirani, 1993, chapter 13), with a fixed seed.
    """
    first, second = np.asarray(before, float), np.asarray(after, float)
    if first.shape != second.shape:
        raise ValueError(f"{len(first)} examples before and {len(second)} after")
    if len(first) < 2:
        return None
    differences = second - first
    generator = np.random.default_rng(0)
    binary = bool(np.isin(np.concatenate([first, second]), (0.0, 1.0)).all())
    if binary:
        p_value = mcnemar(int((differences < 0).sum()), int((differences > 0).sum()))
    else:
        p_value = _permutation(differences, generator)
    low, high = np.percentile(_resampled_means(differences, generator), (2.5, 97.5))
    method = "McNemar, exact" if binary else "permutation"
    return PairedTest(float(differences.mean()), float(low), float(high), p_value, method)


def mcnemar(worse: int, better: int) -> float:
    """The two-sided p-value of this many examples that only the first, or only the second, got right.
    ``min(1, 2 * sum(C(n, i) for i <= min(worse, better)) / 2**n)`` with ``n = worse + better``. Hand-worked: 1 and 5: 2
    * (1 + 6) / 64 = 0.21875."""
    n = worse + better
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(min(worse, better) + 1)) / 2**n)


def _permutation(differences: np.ndarray, generator: np.random.Generator) -> float:
    observed, as_far = abs(differences.mean()), 0
    for _ in range(_RESAMPLES // _AT_ONCE):
        signs = generator.choice((-1.0, 1.0), size=(_AT_ONCE, len(differences)))
        as_far += int((np.abs((signs * differences).mean(1)) >= observed - 1e-12).sum())
    return (as_far + 1) / (_RESAMPLES + 1)  # the observed one is one of them


def _resampled_means(differences: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    parts = [
        differences[generator.integers(0, len(differences), (_AT_ONCE, len(differences)))].mean(1)
        for _ in range(_RESAMPLES // _AT_ONCE)
    ]
    return np.concatenate(parts)
