"""Percentiles, orders and medians of pairs, tests of pairs and of two samples, Student's t, steady growth, sums."""

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hf_efficient.records.trained_model import PairedTest

_N = TypeVar("_N", int, float)


def sum_if_known(parts: Sequence[_N | None]) -> _N | None:
    """The sum; None where a part is None, or where there is none: [1, 2] is 3, [1, None] and [] are None."""
    return None if not parts or None in parts else sum(parts)  # type: ignore[arg-type]


def known_median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


WARM_UP_STEPS = 3
WARM_UP_RULE = f"the first {WARM_UP_STEPS} steps of each train() call, or half its steps where it did fewer than 6"


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value below which this share of the others lies, linear between neighbours (definition 7 of Hyndman and Fan,
    1996); None of nothing. Hand-worked: [1, 2, 4, 8], 0.95: the position is 0.95 * 3 = 2.85, 4 + 0.85 * 4 = 7.4."""
    return float(np.quantile(ordered, share)) if len(ordered) else None


def warm_up_count(steps: int) -> int:
    """How many of the first steps of a ``train()`` call count as warm-up (``WARM_UP_RULE``). They hold compilation, the
    allocator's growth, cold caches and the first fetch of data. It looks at no times: a slow start cannot hide."""
    return min(WARM_UP_STEPS, steps // 2)


def alternating_orders(names: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """In which order the names are run in each round. Every other round is its predecessor backwards (A B, B A), so
    that a drift over two rounds weighs on all alike. Over ``n!`` rounds of ``n`` names each permutation comes once, so
    that none always follows the same other. Hand-worked for A, B, C: ABC CBA, ACB BCA, BAC CAB."""
    forward = (order for order in itertools.permutations(names) if order <= order[::-1])
    cycle = (order for one in forward for order in dict.fromkeys((one, one[::-1])))
    return list(itertools.islice(itertools.cycle(cycle), rounds))


CONFIDENCE = 0.95
"""What an interval must hold the median with before anything is said of it; six pairs are the fewest that do."""


@dataclass(frozen=True)
class Spread:
    """A median, its interval, and the probability, 0 to 1, that this holds the true median."""

    median: float
    low: float
    high: float
    confidence: float
    pairs: int

    @property
    def is_sure(self) -> bool:
        return self.confidence >= CONFIDENCE


def median_spread(values: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """The median, and the narrowest symmetric pair of order statistics that holds it with at least this confidence.
    Between the ``k``-th smallest and the ``k``-th largest of ``n`` independent values lies the true median, whatever
    they are distributed like, with probability ``1 - 2 * sum(C(n, i) for i < k) / 2**n`` (David and Nagaraja, Order
    Statistics, 3rd edition, section 7.1). With five values or fewer no interval reaches 95%; it is then from the
    smallest to the largest, and ``confidence`` says what that is worth."""
    ordered = sorted(values)
    n = len(ordered)
    k = 1
    while k < (n + 1) // 2 and _coverage(n, k + 1) >= confidence:
        k += 1
    return Spread(statistics.median(ordered), ordered[k - 1], ordered[n - k], _coverage(n, k), n)


def _coverage(n: int, k: int) -> float:
    return max(0.0, 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n)


_FEWEST = 6
_PARTS = 3
_CONCORDANT = 0.8
_AS_FAST = 1 / 3
_MOST = 400

Column = npt.NDArray[np.float64]


def steady_growth(places: Column, values: Column) -> float | None:
    """The slope of values that grow from their beginning to their end. Theil and Sen's median of the slopes of all
    pairs (Sen, 1968, doi 10.1080/01621459.1968.10480934). Four of five pairs must increase, and each third of the
    places have at least a third of the slope, which a jump does not give. None: fewer than six, or no such growth."""
    known = np.isfinite(places) & np.isfinite(values)
    places, values = _thinned(places[known], values[known])
    if len(places) < _FEWEST:
        return None
    slopes = pair_slopes(places, values)
    slope = float(np.median(slopes))
    if slope <= 0 or float((slopes > 0).mean()) < _CONCORDANT:
        return None
    parts = np.array_split(np.arange(len(places)), _PARTS)
    least = min(float(np.median(pair_slopes(places[part], values[part]))) for part in parts)
    return slope if least >= _AS_FAST * slope else None


def pair_slopes(places: Column, values: Column, *, least_share: float = 0.0) -> Column:
    """The slopes of pairs more than this share of the mean place apart; of 400 points, as pairs grow by the square."""
    places, values = _thinned(places, values)
    left, right = np.triu_indices(len(places), k=1)
    apart = places[right] - places[left]
    far = np.abs(apart) > least_share * places.mean()
    return (values[right] - values[left])[far] / apart[far]


def _thinned(places: Column, values: Column) -> tuple[Column, Column]:
    if len(places) <= _MOST:
        return places, values
    chosen = np.linspace(0, len(places) - 1, _MOST).astype(int)
    return places[chosen], values[chosen]


_RESAMPLES = 10_000
_AT_ONCE = 1_000


def paired_test(before: Sequence[float], after: Sequence[float]) -> PairedTest | None:
    """The difference of two means over the same examples; None of fewer than two. Scores of 0 and 1: McNemar's exact
    test (McNemar, 1947, doi 10.1007/BF02295996). Others: a sign-flipping permutation test of the mean difference,
    10,000 flips (Good, 2005, section 3.2). The interval is the percentile bootstrap's, 10,000 resamples of the examples
    (Efron and Tibshirani, 1993, chapter 13), with a fixed seed."""
    first, second = np.asarray(before, float), np.asarray(after, float)
    if len(first) < 2:
        return None
    differences = second - first
    size = (_AT_ONCE, len(differences))
    generator = np.random.default_rng(0)
    binary = bool(np.isin(np.concatenate([first, second]), (0.0, 1.0)).all())
    if binary:
        p_value = mcnemar(int((differences < 0).sum()), int((differences > 0).sum()))
    else:
        observed, as_far = abs(differences.mean()), 0
        for _ in range(_RESAMPLES // _AT_ONCE):
            signs = generator.choice((-1.0, 1.0), size)
            as_far += int((np.abs((signs * differences).mean(1)) >= observed - 1e-12).sum())
        p_value = (as_far + 1) / (_RESAMPLES + 1)  # the observed one is one of them
    drawn = (generator.integers(0, len(differences), size) for _ in range(_RESAMPLES // _AT_ONCE))
    low, high = np.percentile(np.concatenate([differences[places].mean(1) for places in drawn]), (2.5, 97.5))
    method = "McNemar, exact" if binary else "permutation"
    return PairedTest(float(differences.mean()), float(low), float(high), p_value, method)


def mcnemar(worse: int, better: int) -> float:
    """The two-sided p-value of so many examples that only the first, or only the second, got right."""
    n = worse + better
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(min(worse, better) + 1)) / 2**n)


_NORMAL_FROM = 200
_NORMAL = statistics.NormalDist()


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of the U test (Mann and Whitney, 1947, doi 10.1214/aoms/1177730491): exact with ties too
    (Klotz, 1966, doi 10.1080/01621459.1966.10480904)."""
    values, ties = np.unique(np.concatenate([first, second]), return_counts=True)
    if len(values) < 2:
        return 1.0
    ranks = 2 * np.cumsum(ties) - ties + 1  # twice the mean rank of each group of ties
    n = len(first)
    doubled = int(ranks[np.searchsorted(values, first)].sum())
    ways = np.zeros((n + 1, int(ranks[-1]) * n + 1))  # of choosing so many values with this doubled sum of ranks
    ways[0, 0] = 1
    for rank in np.repeat(ranks, ties).tolist():
        ways[1:, rank:] += ways[:-1, :-rank]
    whole = ways[n].sum()
    lower, upper = ways[n, : doubled + 1].sum() / whole, ways[n, doubled:].sum() / whole
    return float(min(1.0, 2 * min(lower, upper)))


def fewest_runs(error: float = 0.05) -> int:
    """Of each side, with which the U test can show anything: ``2 / C(2n, n) <= error``. For 5%: 4, as 2 / 70."""
    return next(n for n in range(1, 1_000) if 2 / math.comb(2 * n, n) <= error)


@lru_cache(maxsize=512)
def student_t(error: float, freedom: int) -> float:
    """What Student's t exceeds in absolute value with this probability (Abramowitz and Stegun, 26.7.3 and 26.7.4;
    beyond 200 degrees of freedom 26.7.5). For 5%: 12.706 with 1, 2.365 with 7, 1.960 with many."""
    if freedom > _NORMAL_FROM:
        normal = _NORMAL.inv_cdf(1 - error / 2)
        return normal + (normal**3 + normal) / (4 * freedom)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _within(middle, freedom) > 1 - error else (middle, high)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """The probability that ``|t|`` is at most ``tan(angle) * sqrt(freedom)``."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for factor in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (factor - 1) / factor
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
