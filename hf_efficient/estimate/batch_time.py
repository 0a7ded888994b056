"""The time of a micro-batch as a straight line over its tokens: what it costs before it holds anything.

    seconds = fixed + per_token * tokens

The intercept is launching, Python and reading the weights; it is paid once per micro-batch, so that larger ones pay it
less often (Hockney's ``t = (n + n_half) / r_inf``, see ``estimate/roofline.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FEWEST = 8
_SPREAD = 0.04
_MOST_ERROR = 0.1


@dataclass(frozen=True)
class BatchTime:
    """The line.

    Attributes:
        fixed_seconds: of a micro-batch without tokens.
        token_seconds: of each token more.
        fit: 1 - residual variance / variance, of the micro-batches that it was fitted to.
    """

    fixed_seconds: float
    token_seconds: float
    fit: float


def batch_time(seconds: npt.NDArray[np.float64], tokens: npt.NDArray[np.float64]) -> BatchTime | None:
    """Fit the line robustly: Theil and Sen's median of slopes, which a few late steps do not move.

    None where there are fewer than eight micro-batches, their tokens hardly differ (a standard deviation below 4% of
    the mean), the line is no line (a slope or an intercept below 0), or the intercept is too uncertain: its standard
    error is above a tenth of the mean time.

    With residuals of standard deviation ``s`` the slope's error is ``s / (deviation of the tokens * sqrt(n))``, and the
    intercept's is that times the mean of the tokens. Hand-worked: 25 micro-batches of 100 tokens, deviation 10, ``s``
    a fiftieth of the time: 0.02 / (10 * 5) * 100 = 0.04 of the time.

    Args:
        seconds: of each micro-batch.
        tokens: processed in it.
    """
    known = np.isfinite(seconds) & np.isfinite(tokens)
    seconds, tokens = seconds[known], tokens[known]
    if len(seconds) < _FEWEST or tokens.std() < _SPREAD * tokens.mean():
        return None
    slope = _median_slope(seconds, tokens)
    fixed = float(np.median(seconds - slope * tokens))
    if slope <= 0 or fixed < 0:
        return None
    rest = seconds - fixed - slope * tokens
    deviation = float(np.quantile(np.abs(rest), 0.683))  # of a normal distribution, whatever a few late steps took
    error = deviation / (float(tokens.std()) * len(tokens) ** 0.5) * float(tokens.mean())
    if error > _MOST_ERROR * float(seconds.mean()):
        return None
    middle = np.abs(seconds - np.median(seconds)).mean()
    fit = 1.0 - float(np.abs(rest).mean() / middle) if middle > 0 else 0.0
    return BatchTime(fixed, slope, fit)


def _median_slope(seconds: npt.NDArray[np.float64], tokens: npt.NDArray[np.float64]) -> float:
    if len(seconds) > 400:  # pairs grow by the square
        chosen = np.linspace(0, len(seconds) - 1, 400).astype(int)
        seconds, tokens = seconds[chosen], tokens[chosen]
    left, right = np.triu_indices(len(seconds), k=1)
    apart = tokens[right] - tokens[left]
    differ = np.abs(apart) > 0.1 * tokens.mean()
    if not differ.any():
        return 0.0
    return float(np.median((seconds[right] - seconds[left])[differ] / apart[differ]))
