"""Throughput against the time of a step: one short run for each micro-batch and length."""

import dataclasses
import datetime
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hf_efficient.errors import SetupError
from hf_efficient.estimate.statistics import percentile
from hf_efficient.facts.environment import describe_environment
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.rules.distributed import unnamed_batch
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.tuning import Sweep, SweepPoint, TrialRun
from hf_efficient.text import counted
from hf_efficient.tune.knobs import ROWS
from hf_efficient.tune.search import Progress
from hf_efficient.tune.trial import DoesNotFit, TrialFailed, Trials, Wanted
from hf_efficient.tune.tuning import about_of, check_tunable, settings

AXES: Final = ("per_device_train_batch_size", "max_length")
KNEE: Final = 0.9
"""The knee is the smallest micro-batch with this share of the best tokens/s at its length."""

_ROWS = (1, 2, 4, 8, 16)
_SHORTEST = 64
_WANTED = Wanted(steps=10, seconds=3.0, most_seconds=120.0, rows=0, plan=True)


def sweep(
    argument: str,
    overrides: Sequence[str],
    axes: Sequence[str],
    progress: Progress,
    *,
    rows: Sequence[int] = (),
    lengths: Sequence[int] = (),
    p95_seconds: float | None = None,
    folder: Path | None = None,
) -> Sweep:
    """Run every point of the axes (``AXES``), from small to large; without values, powers of two around the recipe's.
    Raises ``HfEfficientError``: no such axis, a recipe that is wrong, or none of the points ran."""
    unknown = [name for name in axes if name.removeprefix("train.") not in AXES]
    if unknown or not axes:
        named = unknown[0] if unknown else "nothing"
        raise SetupError(f"--over: {named} cannot be swept. Write {','.join(AXES)}, or one of them.")
    recipe = load_recipe(argument, overrides)
    check_tunable(recipe, "")
    axes = [name.removeprefix("train.") for name in axes]
    own_rows, own_length = (int(settings(recipe).train(name) or 0) for name in AXES)
    rows = sorted(rows or {*_ROWS, own_rows}) if AXES[0] in axes else [own_rows]
    lengths = sorted(lengths or _around(own_length)) if AXES[1] in axes else [own_length]
    trials = Trials(argument, overrides, folder or folder_of_sweep(recipe), about_of(recipe))
    try:
        points = _points(recipe, rows, lengths, trials.run, progress)
    finally:
        trials.close()
    if not any(one.tokens_per_second for one in points):
        raise SetupError(f"sweep: none of {counted(len(points), 'point')} ran: {points[0].why}")
    return Sweep(
        recipe=argument,
        started_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        environment=describe_environment(),
        points=with_knees(points),
        p95_limit_seconds=p95_seconds,
        largest=largest_under(points, p95_seconds),
    )


def folder_of_sweep(recipe: Recipe) -> Path:
    """Where a sweep keeps its journal and its page: beside the recipe's output directory."""
    return Path(f"{recipe.output_dir}-sweep").expanduser()


def _around(length: int) -> set[int]:
    if not length:
        raise SetupError("train.max_length: is null, and lengths are swept. Write a number, or --lengths 128,256.")
    return {max(_SHORTEST, length // part) for part in (4, 2, 1)}


def _points(
    recipe: Recipe,
    rows: Sequence[int],
    lengths: Sequence[int],
    measure: Callable[[dict[str, Any], Wanted], TrialRun],
    progress: Progress,
) -> list[SweepPoint]:
    """A length's larger micro-batches are left out after the first that does not fit."""
    found = []
    for length in lengths:
        full = ""
        for count in rows:
            if full:
                found.append(SweepPoint(count, length, why=full))
                continue
            progress.begins(f"{counted(count, 'row')} of {length} tokens")
            changes = {**unnamed_batch(recipe), ROWS: count, **({"train.max_length": length} if length else {})}
            try:
                found.append(point_of(count, length, measure(changes, _WANTED)))
                progress.ends(f"{found[-1].tokens_per_second:,.0f} tokens/s")
            except TrialFailed as error:
                full = str(error) if isinstance(error, DoesNotFit) else ""
                found.append(SweepPoint(count, length, why=str(error)))
                progress.ends(str(error))
    return found


def point_of(rows: int, length: int, run: TrialRun) -> SweepPoint:
    ordered = sorted(run.step_seconds)
    return SweepPoint(
        rows,
        length,
        tokens_per_second=sum(run.step_tokens) / sum(run.step_seconds),
        p50_seconds=statistics.median(ordered),
        p95_seconds=percentile(ordered, 0.95),
        p99_seconds=percentile(ordered, 0.99),
        peak_bytes=run.peak_bytes,
        mfu=run.mfu,
        padding_share=run.padding_share,
        steps=len(ordered),
    )


def with_knees(points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """Hand-worked: 100, 180, 195, 200 tokens/s with 1, 2, 4, 8 rows: 2 rows have 90% of the best."""
    best: dict[int, float] = {}
    for one in points:
        best[one.length] = max(best.get(one.length, 0.0), one.tokens_per_second or 0.0)
    found, marked = [], set[int]()
    for one in sorted(points, key=lambda point: (point.length, point.rows)):
        is_knee = one.length not in marked and bool(one.tokens_per_second)
        is_knee = is_knee and (one.tokens_per_second or 0.0) >= KNEE * best[one.length]
        marked |= {one.length} if is_knee else set()
        found.append(dataclasses.replace(one, knee=is_knee))
    return found


def largest_under(points: Sequence[SweepPoint], p95_seconds: float | None) -> SweepPoint | None:
    """The largest throughput with a p95 of at most that; None where no point has it."""
    limit = float("inf") if p95_seconds is None else p95_seconds
    able = [one for one in points if one.tokens_per_second and (one.p95_seconds or 0.0) <= limit]
    return max(able, key=lambda one: one.tokens_per_second or 0.0, default=None)
