"""Whether two sides differ beyond their noise: steps of two runs, rounds that alternate, runs that are repeated; and
whether a predicted gain came.

Steps of a run are no independent values: neighbours share batches of alike lengths, a warm machine, a busy neighbour.
So blocks of neighbouring steps are resampled together (circular block bootstrap: Politis and Romano, 1992), with the
block length that the series' own correlation asks for. The bootstrap gives the standard error of a ratio's logarithm,
and Student's t the interval, with one degree of freedom less than there are blocks: few blocks hardly know their noise.
What differs between one process and the next is in no step: only rounds and repeated runs hold it.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hf_efficient.estimate.statistics import mann_whitney, student_t
from hf_efficient.records.comparison import Compared

ERROR = 0.05
"""Probability of claiming a difference where there is none."""

FEWEST_STEPS = 8
"""With fewer no spread is known; the time per token of one run has as many blocks."""

POWER = 0.8
_RESAMPLES, _FEWEST_RESAMPLES, _MOST_CELLS = 1_000, 100, 4_000_000
_FEWEST_BLOCKS, _LONGER, _SPELL = 5, 2.0, 25
"""Blocks are so much longer than what gives the standard error its smallest error: too short ones make it too small.
They are as long as a slow spell of a shared machine, of which a short run may show none or one."""
_NORMAL = statistics.NormalDist()

Column = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Statistic = Literal["mean", "median", "p95"]


@dataclass(frozen=True)
class Steps:
    """Seconds of each step in order, and what they are divided by, such as tokens; without it, by nothing."""

    seconds: Column
    per: Column | None = None

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def rates(self) -> Column:
        return self.seconds if self.per is None else self.seconds / self.per

    def first(self, count: int) -> "Steps":
        return Steps(self.seconds[:count], None if self.per is None else self.per[:count])


def compared_steps(
    before: Steps, after: Steps, *, paired: bool, of: Statistic = "median", error: float = ERROR
) -> Compared | None:
    """Ratio of a statistic of two runs' steps, without warm-up. ``mean`` is that of the sums, so
    ``sum(seconds) / sum(per)``; the others are of each step's ``seconds / per``. ``paired``: step by step the same
    batches; the first steps that both have, and the median of the pairs' ratios. None: fewer than eight on a side."""
    count = min(len(before), len(after))
    if paired:
        before, after = before.first(count), after.first(count)
    if count < FEWEST_STEPS:
        return None
    generator = np.random.default_rng(0)
    logs = [np.log(side.rates) for side in (before, after)]
    blocks = [_block_length(logs[1] - logs[0])] * 2 if paired else list(map(_block_length, logs))
    places = [_resampled(len(side), block, generator) for side, block in zip((before, after), blocks, strict=True)]
    fewest = min(map(len, places))
    spread = _log_ratio(before, after, of, places[0][:fewest], places[0 if paired else 1][:fewest], paired)
    whole = [np.arange(len(side))[None] for side in (before, after)]
    ratio = float(_log_ratio(before, after, of, whole[0], whole[1], paired)[0])
    centers = [math.exp(_log_statistic(side, of, each)[0]) for side, each in zip((before, after), whole, strict=True)]
    left = min(len(side) / block for side, block in zip((before, after), blocks, strict=True))
    deviation, down, up = _reach(spread, ratio, left, error)
    low, high, differs = _bounds(ratio - down, ratio + up)
    return Compared(
        method="paired_steps" if paired else "steps",
        before=centers[0],
        after=centers[1],
        ratio=math.exp(ratio),
        low=low,
        high=high,
        standard_error=deviation,
        error=error,
        differs=differs,
        count=count,
        block=max(blocks),
    )


def _reach(spread: Column, ratio: float, blocks: float, error: float) -> tuple[float, float, float]:
    """The standard error by the resamples, with the variance that few blocks lack; and how far the interval goes down
    and up: by Student's t, or the resamples' quantiles, as much wider, where a median jumps between two speeds."""
    lacking = math.sqrt(blocks / (blocks - 1))
    deviation, times = float(spread.std()) * lacking, student_t(error, int(blocks) - 1)
    wider = lacking * times / _NORMAL.inv_cdf(1 - error / 2)
    low, high = np.quantile(spread, (error / 2, 1 - error / 2))
    down, up = (max(times * deviation, wider * gap) for gap in (ratio - float(low), float(high) - ratio))
    return deviation, down, up


def _log_ratio(before: Steps, after: Steps, of: Statistic, first: Places, second: Places, paired: bool) -> Column:
    if paired and of == "median":
        return np.median(np.log(after.rates / before.rates)[second], axis=1)
    return _log_statistic(after, of, second) - _log_statistic(before, of, first)


def _log_statistic(steps: Steps, of: Statistic, places: Places) -> Column:
    if of == "mean":
        per = places.shape[1] if steps.per is None else steps.per[places].sum(1)
        found = steps.seconds[places].sum(1) / per
    else:
        found = np.quantile(steps.rates[places], 0.95 if of == "p95" else 0.5, axis=1)
    return np.log(found)


def _resampled(count: int, block: int, generator: np.random.Generator) -> Places:
    """Places of each resample: blocks from anywhere, the end followed by the beginning; fewer of very long runs."""
    resamples = max(_FEWEST_RESAMPLES, min(_RESAMPLES, _MOST_CELLS // count))
    starts = generator.integers(0, count, (resamples, -(-count // block), 1))
    places = (starts + np.arange(block)) % count
    return places.reshape(resamples, -1)[:, :count]


def _block_length(series: Column) -> int:
    """Politis and White's choice for a circular block bootstrap of the mean (2004, doi 10.1081/ETC-120028836; corrected
    by Patton, Politis and White, 2009), twice as long, at least ``_SPELL``, at most a fifth of ``n``."""
    n = len(series)
    centered = series - series.mean()
    enough = max(5, math.ceil(math.sqrt(math.log10(n))))
    most = min(n - 1, math.ceil(math.sqrt(n)) + enough)
    covariances = np.array([float(centered[lag:] @ centered[: n - lag]) / n for lag in range(most + 1)])
    least, longest = max(_SPELL, round(n ** (1 / 3))), max(1, n // _FEWEST_BLOCKS)
    if covariances[0] <= 0:
        return min(least, longest)
    small = np.abs(covariances[1:] / covariances[0]) < 2 * math.sqrt(math.log10(n) / n)
    reach = next((lag for lag in range(most) if small[lag : lag + enough].all()), most)
    window = min(2 * max(1, reach), most)
    lags = np.arange(1, window + 1)
    weights = np.minimum(1.0, 2 * (1 - lags / window)) * covariances[1 : window + 1]
    spectrum = covariances[0] + 2 * float(weights.sum())
    slope = 2 * float((weights * lags).sum())
    wanted = (1.5 * slope**2 / spectrum**2) ** (1 / 3) * n ** (1 / 3) if spectrum > 0 else longest
    return max(1, min(longest, max(least, math.ceil(_LONGER * wanted))))


def _bounds(low: float, high: float) -> tuple[float, float, bool]:
    """By their logarithms the ends of an interval, and whether it leaves out 1."""
    low, high = (math.exp(max(-700.0, min(700.0, bound))) for bound in (low, high))
    return low, high, not low <= 1 <= high


def compared_rounds(
    before: Sequence[float], after: Sequence[float], *, error: float = ERROR, earlier: Sequence[Sequence[float]] = ()
) -> Compared | None:
    """Ratio of two sides that were run in turn, a figure of each a round: the geometric mean of the rounds' ratios, and
    Student's t over their logarithms, so that what differs between processes is in the noise. ``earlier``: logarithms
    of the ratios of other comparisons on this machine, comparison by comparison, whose noise is taken to be the same:
    the variance is pooled. None of one round, unless others came earlier."""
    logs = [math.log(right / left) for left, right in zip(before, after, strict=True)]
    groups = [group for group in (logs, *earlier) if len(group) > 1]
    freedom = sum(len(group) - 1 for group in groups)
    if not logs or not freedom:
        return None
    variance = sum((len(group) - 1) * statistics.variance(group) for group in groups) / freedom
    deviation = math.sqrt(variance / len(logs))
    reach, ratio = student_t(error, freedom) * deviation, statistics.fmean(logs)
    low, high, differs = _bounds(ratio - reach, ratio + reach)
    first, second = map(statistics.geometric_mean, (before, after))
    return Compared("rounds", first, second, math.exp(ratio), low, high, deviation, error, differs, len(logs))


def looked_at_rounds(
    before: Sequence[float], after: Sequence[float], most_rounds: int, *, earlier: Sequence[Sequence[float]] = ()
) -> Compared | None:
    """``compared_rounds`` of a test that is looked at after each of its rounds, to stop as soon as the answer is clear.
    The look after round ``k`` of at most ``n`` may err with ``ERROR / n``, the first look, after round 2, with twice
    that. Together they claim a difference that is not there with at most ``ERROR``, however the looks depend on each
    other (Bonferroni; linear spending of Lan and DeMets, 1983, doi 10.1093/biomet/70.3.659)."""
    if not 0 < len(before) <= most_rounds:
        raise ValueError(f"{len(before)} rounds of at most {most_rounds}")
    spent = ERROR / most_rounds * (2 if len(before) == 2 and not earlier else 1)
    return compared_rounds(before, after, error=spent, earlier=earlier)


def compared_runs(before: Sequence[float], after: Sequence[float]) -> Compared | None:
    """Medians of repeated runs, and Mann and Whitney's U test of them, as benchstat compares benchmarks. None without a
    run on a side. Fewer than ``fewest_runs`` on both sides show nothing, whatever they measured."""
    if not before or not after:
        return None
    first, second, p_value = statistics.median(before), statistics.median(after), mann_whitney(before, after)
    ratio = second / first
    count = min(len(before), len(after))
    return Compared("runs", first, second, ratio, None, None, None, ERROR, p_value <= ERROR, count, p_value=p_value)


def needed(found: Compared, difference: float) -> int | None:
    """Steps or rounds on each side, with which a difference of this share is found in 80% of cases: the standard error
    falls with the root of their number. None where the method knows no standard error."""
    reach = _reach_of(found)
    return None if reach is None or difference == 0 else math.ceil(found.count * (reach / math.log1p(difference)) ** 2)


def visible(found: Compared) -> float | None:
    """The smallest difference, as a share, that so many steps or rounds find in 80% of cases."""
    reach = _reach_of(found)
    return None if reach is None else math.expm1(min(700.0, reach))


def _reach_of(found: Compared) -> float | None:
    """The logarithm of the ratio that is found with ``POWER``."""
    times = _NORMAL.inv_cdf(1 - found.error / 2) + _NORMAL.inv_cdf(POWER)
    return None if found.standard_error is None else times * found.standard_error


LEAST, MOST = 0.5, 2.0
"""A gain that came is as predicted where it is between these times the prediction."""

Outcome = Literal["as_predicted", "below_half", "above_twice", "no_difference", "worse", "hidden"]
"""``no_difference``: it lies within the spread, and what was predicted does not; ``hidden``: both lie within it."""


def saved_share(before: float, after: float) -> float:
    """Of what it took before: 0.2 where 10 became 8; below 0: it takes more."""
    return 1 - after / before


def is_as_predicted(predicted: float, achieved: float) -> bool:
    return LEAST * predicted <= achieved <= MOST * predicted


def rate_spread(seconds: Sequence[float], tokens: Sequence[float], pauses: Sequence[Sequence[float]]) -> float | None:
    """How far the time per token of a run may lie from that of many like it: half of the 95% interval, as a share. None
    of fewer than 8 steps, or where no time or token is in them.

    The steps are put into 8 blocks, one behind the other, since neighbours are alike. With ``s`` and ``t`` the seconds
    and tokens of a block, and ``r = S / T`` of their sums, the variance of ``r`` is about ``8 / 7 * sum((s - r t)**2) /
    T**2`` (Cochran, Sampling Techniques, 3rd edition, section 2.11). Pauses are planned: only their length varies, and
    ``n`` of variance ``v`` add ``n v``. Differences between runs are not seen."""
    count = len(seconds)
    if count < FEWEST_STEPS or sum(seconds) <= 0 or sum(tokens) <= 0:
        return None
    bounds = [count * number // FEWEST_STEPS for number in range(FEWEST_STEPS + 1)]
    blocks = [slice(*pair) for pair in itertools.pairwise(bounds)]
    rate = sum(seconds) / sum(tokens)
    squares = sum((sum(seconds[block]) - rate * sum(tokens[block])) ** 2 for block in blocks)
    variance = FEWEST_STEPS / (FEWEST_STEPS - 1) * squares
    variance += sum(len(kind) * statistics.variance(kind) for kind in pauses if len(kind) > 1)
    return student_t(0.05, FEWEST_STEPS - 1) * math.sqrt(variance) / (sum(seconds) + sum(sum(kind) for kind in pauses))


def saved_spread(achieved: float, before: float, after: float) -> float:
    """Half of the interval in which a saved share lies. What is left, ``q = 1 - achieved``, is a quotient: its relative
    variance is about the sum of those of its parts. Hand-worked: 0.4 with spreads of 3% and 4%: 0.6 * 0.05 = 0.03."""
    return (1 - achieved) * math.hypot(before, after)


def judge_gain(predicted: float, achieved: float, spread: float) -> Outcome:
    """Hold what came against what was predicted. A gain within the spread is no difference, and retracts a prediction
    beyond it: of 0.3 predicted, 0.02 with a spread of 0.05 is no difference, and with 0.29 says nothing."""
    if abs(achieved) <= spread:
        return "no_difference" if achieved + spread < predicted else "hidden"
    if achieved < 0:
        return "worse"
    if is_as_predicted(predicted, achieved):
        return "as_predicted"
    return "below_half" if achieved < predicted else "above_twice"
