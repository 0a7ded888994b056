"""A recipe at several values of one key or more: short trials of each, in turns; where more of it stops to pay."""

import contextlib
import difflib
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from hf_efficient.errors import HfEfficientError, SetupError, first_line, writing
from hf_efficient.estimate.statistics import known_median, percentile
from hf_efficient.facts.environment import describe_environment
from hf_efficient.recipe.load import change_recipe, load_recipe
from hf_efficient.recipe.rules.distributed import with_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.schema_check import key_called
from hf_efficient.recipe.train_fields import train_fields
from hf_efficient.records import tuning as rec
from hf_efficient.records.tuning import TUNING_SCHEMA_VERSION, Sweep, SweptPoint, TrialRun
from hf_efficient.run_dir.json_file import strict_json, write_whole
from hf_efficient.text import seconds, short_seconds
from hf_efficient.trials.goal import Goal, Wanted, p95, seconds_per_token
from hf_efficient.trials.process import Progress, RunFailed
from hf_efficient.trials.search import FEWEST_STEPS, Measure
from hf_efficient.trials.tune import folder_of, trial_layout, trials_of
from hf_efficient.version import __version__

_ROUNDS, _DOUBLED = 3, 5  # the latter: values of a key that names none
_SECONDS = (2.0, 15.0)  # of timed steps in a trial
_VERDICTS: dict[str, Literal["does_not_fit", "no_time"]] = {"no_room": "does_not_fit", "no_time": "no_time"}
_ROWS, _ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"


def sweep(
    argument: str, overrides: Sequence[str], over: str, goal: Goal, progress: Progress, folder: Path | None = None
) -> Sweep:
    """``over``: ``KEY=1,2,4,KEY``; of the goal its limits and minutes. ``sweep.json`` is written to the folder, where a
    later call continues. Raises ``HfEfficientError``: a recipe or key is wrong, no point fits, too few minutes."""
    recipe = load_recipe(argument, overrides)
    points = points_of(recipe, over, trial_layout(recipe).processes)
    folder = folder or folder_of(recipe, "sweep")
    trials = trials_of(recipe, argument, overrides, folder, goal)
    rounds = Rounds(points, goal, trials.run, progress)
    with contextlib.closing(trials):
        rounds.go()
    settings = {name: getattr(goal, name) for name in ("minutes", "most_p95_seconds", "most_bytes")}
    settings |= {"over": over, "keeps_global_batch": recipe.distributed.global_batch_size is not None}
    within = [one for one in points if one.steps and one.p95_seconds <= (goal.most_p95_seconds or 0.0)]
    best = max(within, key=lambda one: one.tokens_per_second, default=None)
    found = Sweep(
        schema_version=TUNING_SCHEMA_VERSION,
        hf_efficient_version=__version__,
        recipe=argument,
        environment=describe_environment(),
        settings=settings,
        notes=list(mark_knees(points)),
        points=points,
        spent_seconds=rounds.spent,
        answer=None if best is None else points.index(best),
    )
    with writing("--folder", folder):
        write_whole(folder / "sweep.json", strict_json(found))
    return found


def points_of(recipe: Recipe, over: str, processes: int = 1) -> list[SweptPoint]:
    """All combinations, the smallest first. ``SetupError``: a key or a value is wrong, or no combination is valid."""
    values = values_of(over, Settings(recipe, train_fields(recipe.objective)))
    held = [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]
    found = [SweptPoint(rec.named_values(one.items()), one) for one in held]
    for point in found:
        try:
            changed = with_accumulation(change_recipe(recipe, point.values), processes)
        except HfEfficientError as error:
            point.verdict, point.why = "failed", first_line(error).rstrip(".")
            continue
        train = Settings(changed, train_fields(recipe.objective)).train
        point.rows = int(train(_ROWS)) * int(train(_ACCUMULATION)) * processes
    if all(one.verdict == "failed" for one in found):
        raise SetupError(f"--over: {found[0].name}: {found[0].why}.")
    return found


def values_of(over: str, settings: Settings) -> dict[str, tuple[int, ...]]:
    """By dotted key, rising; doubled where none are named."""
    named: dict[str, list[str]] = {}
    name = ""
    for part in filter(None, map(str.strip, over.split(","))):
        if name and re.match(r"[-+.\d]", part):
            named[name].append(part)
            continue
        name, equals, value = part.removeprefix("train.").partition("=")
        if name in named:
            raise SetupError(f"--over: {name} is named twice. Write {name}=1,2,4 once.")
        named[name] = [value] if equals else []
    if not named:
        raise SetupError("--over: names no key. Write per_device_train_batch_size=1,2,4, for instance.")
    return {f"train.{name}": _values(name, texts, settings) for name, texts in named.items()}


def _values(name: str, texts: Sequence[str], settings: Settings) -> tuple[int, ...]:
    if name not in settings.fields:
        numbers = [key for key, field in settings.fields.items() if "int" in field.kinds]
        meant = (key_called(name, Recipe) or "").removeprefix("train.")
        close = [meant] if meant in numbers else difflib.get_close_matches(name, numbers, n=1)
        raise SetupError(f"--over: {name} is no key of `train:`. Write {close[0] if close else _ROWS}=1,2,4.")
    if name == "max_steps" or "int" not in settings.fields[name].kinds:
        why = "is set by each trial itself" if name == "max_steps" else "takes no whole number"
        raise SetupError(f"--over: train.{name} {why}. Name another key, such as {_ROWS}.")
    own = settings.train(name)
    wrong = next((text for text in texts if not text.isdecimal() or int(text) < 1), None)
    if wrong is not None or not (texts or isinstance(own, int)):
        why = f"{wrong or 'nothing'} is no value of {name}" if texts else f"the recipe has no {name} to begin at"
        raise SetupError(f"--over: {why}. Write whole numbers above zero: {name}=1,2,4.")
    if texts:
        return tuple(sorted({int(text) for text in texts}))
    first = 1 if name == _ROWS else max(1, own // 4)
    return tuple(first * 2**power for power in range(_DOUBLED))


class Rounds:
    """All points once, each planned first; then again in alternating order, while a whole round has time. Raises
    ``SetupError``: no point fits, the first does not train, or the minutes are too few."""

    def __init__(self, points: Sequence[SweptPoint], goal: Goal, measure: Measure, progress: Progress) -> None:
        self._points, self._goal, self._measure, self._progress = points, goal, measure, progress
        self._limit = 60 * goal.minutes
        self._each = min(max(self._limit / (2 * _ROUNDS * len(points)), _SECONDS[0]), _SECONDS[1])
        self._runs: dict[str, list[TrialRun]] = {}
        self.spent = 0.0

    def go(self) -> None:
        self._first_round()
        for number in range(1, _ROUNDS):
            left = [one for one in self._points if one.verdict == "measured"]
            if self.spent + sum(self._runs[one.name][-1].wall_seconds for one in left) > self._limit:
                break
            for one in reversed(left) if number % 2 else left:
                self._run(one)

    def _first_round(self) -> None:
        latest = 0.0
        no_room: list[SweptPoint] = []
        for one in self._points:
            smaller = [two for two in no_room if all(two.values[key] <= one.values[key] for key in two.values)]
            if smaller:
                one.verdict, one.why = "does_not_fit", f"{smaller[0].name} does not fit"
            if one.verdict != "no_time":
                continue
            if self.spent + latest > self._limit:
                if len(self._runs) < 2:  # which make a curve
                    enough = math.ceil(1.5 * latest * len(self._points) / 60)
                    why = f"one trial took {seconds(latest)}, and there are {len(self._points)} points"
                    raise SetupError(f"--minutes: {self._goal.minutes:g} are too few: {why}. Write {enough} or more.")
                one.why = "the time ended before it: more --minutes measure it"
                continue
            latest = self._run(one)
            no_room += [one] * (one.verdict == "does_not_fit")
            if not self._runs and one.verdict == "no_time":
                few = f"--minutes: {self._goal.minutes:g} are too few"
                raise SetupError(f"{few}: with {one.name}, {one.why}. Write 10, for instance.")
            if not self._runs:
                what = "no point fits" if no_room else "the recipe does not train"
                raise SetupError(f"sweep: {what}: with {one.name}, {one.why}. Write smaller values, or another recipe.")

    def _run(self, one: SweptPoint) -> float:
        left, plan = max(self._limit - self.spent, 1.0), one.name not in self._runs
        wanted = Wanted(FEWEST_STEPS, self._each, left, rows=0, plan=plan, most_bytes=self._goal.most_bytes)
        self._progress.begins(one.name)
        try:
            run = self._measure(one.values, wanted)
        except RunFailed as error:
            self.spent += error.seconds
            one.verdict, one.why = _VERDICTS.get(error.kind, "failed"), str(error).rstrip(".")
            self._progress.ends(f"{one.verdict.replace('_', ' ')}: {error}")
            return error.seconds
        self.spent += run.wall_seconds
        one.verdict = "measured"
        self._runs.setdefault(one.name, []).append(run)
        _add_figures(one, self._runs[one.name])
        self._progress.ends(f"{one.of_trials[-1]:,.0f} tokens/s, p95 {short_seconds(p95([run]))}")
        return run.wall_seconds


def _add_figures(one: SweptPoint, runs: Sequence[TrialRun]) -> None:
    steps = sorted(second for run in runs for second in run.step_seconds)
    one.steps, one.tokens_per_second = len(steps), sum(sum(run.step_tokens) for run in runs) / sum(steps)
    one.of_trials = [1 / seconds_per_token(run, 0.0) for run in runs]
    one.p50_seconds, one.p95_seconds, one.p99_seconds = (percentile(steps, part) or 0.0 for part in (0.5, 0.95, 0.99))
    peaks = [run.peak_bytes for run in runs[1:] or runs if run.peak_bytes is not None]  # the first one planned, too
    one.peak_bytes, one.mfu = max(peaks, default=None), known_median(run.mfu for run in runs)


def mark_knees(points: Sequence[SweptPoint]) -> Iterator[str]:
    """Adds gains along each curve, and its knee; says of which it has none."""
    for others, curve in rec.curves(points).items():
        knee = 0
        for place, (before, one) in enumerate(itertools.pairwise(curve), start=1):
            low, high = (next(iter(each.values.values())) for each in (before, one))
            one.gain_per_doubling = (one.tokens_per_second / before.tokens_per_second) ** (1 / math.log2(high / low))
            knee += knee == place - 1 and one.gain_per_doubling >= rec.LEAST_DOUBLING
        curve[knee].is_knee = knee < len(curve) - 1
        if not curve[knee].is_knee:
            last, beyond = curve[-1].name, rec.unmeasured_beyond(points, curve[-1])
            unseen = f", without {' and '.join(beyond)}" if beyond else ""
            told = (
                f"tokens/s still rise at the largest measured value, {last}" if knee else f"{last} alone was measured"
            )
            yield f"no knee{f' at {others}' if others else ''}: {told}{unseen}"
