"""Plan, measure, accept: one change of a recipe after the other, those first that the diagnosis ranks first.

A candidate and the recipe so far run in turn, in pairs whose order alternates. After each pair a sequential test says
whether the gain lies outside the noise between runs (``estimate/significance.py``); noise is known from the pairs, and
from repeated runs of other configurations. A candidate that shows nearly nothing is left at once.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from hf_efficient.errors import HfEfficientError, SetupError, first_line
from hf_efficient.estimate.significance import compared_rounds, looked_at_rounds
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.records.comparison import Compared
from hf_efficient.records.tuning import Gain, Rung, TrialRun, TriedChange, Verdict
from hf_efficient.text import seconds, short_seconds, size
from hf_efficient.trials.goal import Configuration, Goal, Wanted, figure, over_limits, p95, rung_of, seconds_per_token
from hf_efficient.trials.knobs import KNOBS, Here, Knob, Pauses
from hf_efficient.trials.process import Progress, RunFailed

MOST_ROUNDS: Final = 4
LEAST_GAIN: Final = 1.02  # a smaller ratio is not worth a changed recipe

FEWEST_STEPS: Final = 5
_MUCH_PAUSED = 0.1
_SECONDS = (4.0, 15.0)
_RUNS = 80  # of which a tuning's minutes should have room, each of so many measured seconds
_SLOWER = 3.0  # times as long as the first run, and a trial is ended

Measure = Callable[[Mapping[str, Any], Wanted], TrialRun]  # trains once; raises ``RunFailed``


@dataclass(frozen=True)
class Candidate:
    knob: Knob
    told: TriedChange  # before it is tried
    configuration: Configuration


Pair = tuple[TrialRun, TrialRun]  # of the recipe so far, and of the candidate


class Search:
    """``settings_of``: the recipe with changes, or ``HfEfficientError`` where they do not go together."""

    def __init__(
        self, goal: Goal, settings_of: Callable[[Mapping[str, Any]], Settings], measure: Measure, progress: Progress
    ) -> None:
        self._goal, self._settings_of, self._measure, self._progress = goal, settings_of, measure, progress
        self._done: set[str] = set()  # knobs that are not asked again
        self._last: tuple[Configuration, TrialRun] | None = None
        self._measured_too: list[Configuration] = []  # accepted or not
        self.configurations: list[Configuration] = []
        self.tried: list[TriedChange] = []
        self.notes: list[str] = []
        self.spent = 0.0
        self.total: Gain | None = None

    def go(self) -> None:
        """Raises ``SetupError``: the recipe does not train or fit, has no price, or the minutes are too few."""
        self._begin()
        for saves in self._parts():
            self._objective = "peak_memory" if saves == "memory" else self._goal.objective
            while (found := next(self._candidates(saves), None)) is not None:
                if not found.knob.computed and not self._has_time(1 if self._fresh is not None else 2):
                    self.notes.append(f"the time ended before {found.knob.name} and what follows it were tried")
                    break
                if self._try(found) == "no_time":
                    self.notes.append(f"the time ended while {found.knob.name} was tried: more --minutes go further")
                    break
        self.notes += self._promises()
        self._compare_with_the_original()

    def _promises(self) -> Iterator[str]:
        """What others claim of knobs that were not tried, and why they were not."""
        here, left = Here(self.base.settings, self.base.latest, self._pauses), {one.knob for one in self.tried}
        waits = here.run.data_wait_share
        for knob in KNOBS:
            if knob.promised and knob.name not in left | self._goal.without and not knob.propose(here):
                why = knob.idle.format(waits=waits, most=1 / (1 - waits))
                yield f"{knob.name}: promised elsewhere: {knob.promised}; not tried: {why}"

    @property
    def ladder(self) -> list[Rung]:
        return [rung_of(one, self._pauses, self._first.price_usd_per_hour) for one in self.configurations]

    @property
    def base(self) -> Configuration:
        return self.configurations[-1]

    @property
    def _fresh(self) -> TrialRun | None:
        """The last run, where it was of the recipe so far: the next candidate can be held against it."""
        return self._last[1] if self._last is not None and self._last[0] is self.base else None

    def _parts(self) -> Iterator[str]:
        """What to save: memory first, where the recipe takes more than it may."""
        above = self._goal.most_bytes is not None and (self._first.peak_bytes or 0) > self._goal.most_bytes
        if above and self._goal.saves != "memory":
            yield "memory"
            if (self.base.latest.peak_bytes or 0) > (self._goal.most_bytes or 0):
                limit = size(self._goal.most_bytes or 0)
                self.notes.append(f"no change that was tried brings the peak under --max-memory ({limit})")
                return
        yield self._goal.saves

    def _begin(self) -> None:
        minutes = self._goal.minutes
        least = min(max(minutes * 60 / _RUNS, _SECONDS[0]), _SECONDS[1])
        wanted = Wanted(FEWEST_STEPS, least, minutes * 60, plan=True, pauses=True)
        base = Configuration("original", {}, self._settings_of({}))
        try:
            run = self._run(base, wanted, "the recipe as it is")
        except RunFailed as error:
            if error.kind == "no_room":
                why = f"{error}. `hf-efficient plan RECIPE --advise` shows what would"
                raise SetupError(f"tune: the recipe does not fit: {why}.") from error
            if error.kind == "no_time":
                raise SetupError(f"--minutes: {minutes:g} are too few: {error}. Write 10, for instance.") from error
            raise SetupError(f"tune: the recipe as it is does not train: {error}") from error
        self._first = run
        if self._left() < run.wall_seconds or run.loss is None:
            told = f"one trial of this recipe took {seconds(run.wall_seconds)}"
            enough = math.ceil(4 * run.wall_seconds / 60)
            raise SetupError(f"--minutes: {minutes:g} are too few: {told}. Write {enough} or more.")
        if self._goal.objective == "usd_per_million_tokens" and run.price_usd_per_hour is None:
            why = "usd_per_million_tokens needs a price, and none is known"
            raise SetupError(f"--objective: {why}. Write cost.price_usd_per_hour=0.5, for instance.")
        self._pauses = Pauses(run.evaluation_seconds or 0.0, run.save_seconds or 0.0)
        most, limit = _SLOWER * run.wall_seconds, self._goal.most_bytes
        plan = self._goal.saves == "memory"  # which takes memory too: in all runs, or in none
        self._wanted = Wanted(FEWEST_STEPS, least, most, tokens=run.loss_tokens, plan=plan, most_bytes=limit)
        self._own_p95 = p95([run])
        self.configurations.append(base)

    def _run(self, one: Configuration, wanted: Wanted, what: str) -> TrialRun:
        self._progress.begins(what)
        try:
            run = self._measure(one.changes, wanted)
        except RunFailed as error:
            self.spent += error.seconds
            self._progress.ends(f"failed: {error}")
            raise
        self.spent += run.wall_seconds
        one.runs.append(run)
        self._last = (one, run)
        rate = sum(run.step_tokens) / sum(run.step_seconds)
        self._progress.ends(f"{rate:,.0f} tokens/s in its steps, {seconds(run.wall_seconds)}")
        return run

    def _left(self) -> float:
        return 60 * self._goal.minutes - self.spent

    def _has_time(self, runs: int) -> bool:
        """For so many more, and at the end the original beside the tuned recipe."""
        own = self.base.latest.wall_seconds
        end = own + self._first.wall_seconds if len(self.configurations) > 1 else 0.0
        return self._left() >= runs * own + end

    def _candidates(self, saves: str) -> Iterator[Candidate]:
        here = Here(self.base.settings, self.base.latest, self._pauses)
        ranked = []
        for place, knob in enumerate(KNOBS):
            if knob.name in self._done | self._goal.without or saves not in knob.saves:
                continue
            changes = knob.propose(here)
            if changes:
                rank, left = _ranked(knob, changes, here)
                ranked.append((rank, place, knob, changes, left))
        for _, _, knob, changes, left in sorted(ranked, key=lambda one: one[:2]):
            whole = {**self.base.changes, **changes}
            try:
                settings = self._settings_of(whole)
            except HfEfficientError as error:
                self._done.add(knob.name)
                self._say(TriedChange(knob.name, knob.what, changes, "failed", first_line(error)))
                continue
            predicted = self._predicted(here, settings, left)
            more: dict[str, Any] = {"costs": knob.costs, "promised": knob.promised, "predicted": predicted}
            told = TriedChange(knob.name, knob.what, changes, "no_gain", **more)
            yield Candidate(knob, told, Configuration(knob.name, whole, settings))

    def _predicted(self, here: Here, settings: Settings, left: float | None) -> float | None:
        """The ratio of the objective, where only time is predicted."""
        if left is None or self._objective == "peak_memory":
            return None
        before, after = (self._pauses.per_step(one) for one in (here.settings, settings))
        if self._objective == "p95_step_seconds":
            before = after = 0.0
        return (here.step_seconds + before) / (here.step_seconds * left + after)

    def _try(self, one: Candidate) -> Verdict:
        told = self._computed(one) if one.knob.computed else self._measured(one)
        self._say(told)
        if told.verdict != "accepted":
            self._done.add(one.knob.name)
            return told.verdict
        if one.knob.computed and self._fresh is not None:
            self._last = (one.configuration, self._fresh)
        one.configuration.gain = told.gain
        self.configurations.append(one.configuration)
        return told.verdict

    def _say(self, told: TriedChange) -> None:
        self.tried.append(told)
        gain = "" if told.gain is None else f" {told.gain.ratio:.2f} times"
        self._progress.begins(told.knob)
        self._progress.ends(f"{told.verdict.replace('_', ' ')}{gain}{f': {told.why}' if told.why else ''}")

    def _computed(self, one: Candidate) -> TriedChange:
        """By the pauses, timed once, and the steps of all trials so far."""
        runs = self.base.runs
        each = [self._pauses.per_step(config.settings) for config in (self.base, one.configuration)]
        before, after = (sum(seconds_per_token(run, pause) for run in runs) for pause in each)
        one.configuration.runs = list(runs)
        took = short_seconds(self._pauses.evaluation_seconds), short_seconds(self._pauses.save_seconds)
        how = f"computed: one evaluation took {took[0]}, one save {took[1]}"
        gain = Gain(before / after, None, None, how)
        gains = gain.ratio >= LEAST_GAIN and self._objective != "p95_step_seconds"
        return replace(one.told, verdict="accepted" if gains else "no_gain", gain=gain)

    def _measured(self, one: Candidate) -> TriedChange:
        told = one.told
        self._measured_too.append(one.configuration)
        rounds: list[Pair] = []
        turned = self._fresh is None  # then the candidate begins, so that the base's run serves the next one too
        for number in range(MOST_ROUNDS):
            if number and not self._has_time(2):
                return replace(told, verdict="no_time", why="the time ended before its gain was clear")
            try:
                rounds.append(self._pair(one, first=not number, candidate_first=turned == (number % 2 == 0)))
            except RunFailed as error:
                return replace(told, verdict="does_not_fit" if error.kind == "no_room" else "failed", why=str(error))
            refused = self._refused(one, rounds)
            ratio = self._loss_ratio(rounds[-1][1])
            told = replace(told, rounds=len(rounds), gain=self._gain(one, rounds), loss_ratio=ratio)
            if refused:
                return replace(told, verdict=refused[0], why=refused[1])
            assert told.gain is not None
            if told.gain.ratio < LEAST_GAIN:
                return told
            if told.gain.low is not None and told.gain.low > 1:
                return replace(told, verdict="accepted")
        return replace(told, verdict="undecided", why=f"{MOST_ROUNDS} rounds do not separate it from noise")

    def _pair(self, one: Candidate, *, first: bool, candidate_first: bool) -> Pair:
        """Run both; where it may need more memory, the candidate is planned before its first run."""
        plans = first and "memory" not in one.knob.saves
        wanted = structs.replace(self._wanted, plan=plans or self._wanted.plan)
        base = self._fresh if first else None
        if base is None and not candidate_first:
            base = self._base_run()
        candidate = self._run(one.configuration, wanted, one.knob.what)
        return base or self._base_run(), candidate

    def _base_run(self) -> TrialRun:
        try:
            return self._run(self.base, self._wanted, "the recipe so far")
        except RunFailed as error:
            raise SetupError(f"tune: the recipe so far trained before, and does not any more: {error}") from error

    def _refused(self, one: Candidate, rounds: list[Pair]) -> tuple[Any, str] | None:
        (base, run), ratio = rounds[-1], self._loss_ratio(rounds[-1][1])
        if ratio is None:
            return "no_gain", "it was too slow to reach as many tokens"
        if ratio > 1 + self._goal.tolerance:
            return "worse_loss", f"its loss at equal tokens is {ratio - 1:.1%} higher"
        limit = over_limits(self._goal, run, self._own_p95)
        if not limit or (limit == "memory" and self._objective == "peak_memory"):
            return None
        if limit == over_limits(self._goal, base, self._own_p95) == "p95":  # it was above it before
            return None
        measured = size(run.peak_bytes or 0) if limit == "memory" else f"{short_seconds(p95([run]))} for p95"
        return "over_limit", f"it took {measured}"

    def _loss_ratio(self, run: TrialRun) -> float | None:
        """Against the original's, so that small losses do not add up; None where the run did not get so far."""
        return None if run.loss is None or not self._first.loss else run.loss / self._first.loss

    def _gain(self, one: Candidate, rounds: list[Pair]) -> Gain:
        before, after = self._figures(self.base, one.configuration, rounds)
        own = [*self.base.runs, *one.configuration.runs]
        found = looked_at_rounds(before, after, MOST_ROUNDS, earlier=self._noise(own))
        pairs = f"{len(rounds)} {'pair' if len(rounds) == 1 else 'pairs'} of runs"
        return _turned(found, f"measured: {pairs}", before, after)

    def _figures(self, base: Configuration, other: Configuration, rounds: list[Pair]) -> Iterator[list[float]]:
        """Of the first in each round, then of the second."""
        for one, runs in zip((base, other), zip(*rounds, strict=True), strict=True):
            yield [figure(self._objective, run, self._pauses.per_step(one.settings)) for run in runs]

    def _noise(self, compared: list[TrialRun]) -> list[list[float]]:
        """What other repeated runs of one configuration know of it: a ratio of two has twice the variance of one."""
        taken = {id(run) for run in compared}
        found = []
        for one in (*self.configurations, *self._measured_too):
            runs = [run for run in one.runs if id(run) not in taken]
            taken |= {id(run) for run in runs}
            found.append([math.sqrt(2) * math.log(figure(self._objective, run, 0.0)) for run in runs])
        return [group for group in found if len(group) > 1]

    def _compare_with_the_original(self) -> None:
        """One pair more, in which the tuned recipe's steps, evaluations and saves stand against the original's."""
        original, tuned = self.configurations[0], self.base
        self._objective = self._goal.objective
        if original is tuned or self._left() < original.latest.wall_seconds + tuned.latest.wall_seconds:
            return
        try:
            last = self._run(tuned, self._wanted, "the tuned recipe")
            pair = self._run(original, self._wanted, "the recipe as it was"), last
        except RunFailed as error:
            self.notes.append(f"the tuned recipe was not compared with the original: {error}")
            return
        if (ratio := self._loss_ratio(last)) is not None:
            seen = f"{self._first.loss_tokens:,} tokens"
            self.notes.append(f"loss on held-out rows after {seen}: {ratio:.3f} times the original's")
        before, after = self._figures(original, tuned, [pair])
        found = compared_rounds(before, after, earlier=self._noise(list(pair)))
        self.total = _turned(found, "measured: the tuned recipe beside the original", before, after)


def _turned(found: Compared | None, how: str, before: list[float], after: list[float]) -> Gain:
    """How many times better, where the figures say how many times less."""
    if found is None or found.low is None or found.high is None:
        mean = sum(map(math.log, before)) - sum(map(math.log, after))
        return Gain(math.exp(mean / len(before)), None, None, how)
    return Gain(1 / found.ratio, 1 / found.high, 1 / found.low, how)


def _ranked(knob: Knob, changes: Mapping[str, Any], here: Here) -> tuple[int, float | None]:
    """Its place by the diagnosis, and the share of a step's time that should be left."""
    own = knob.time_left(here)
    if knob.computed:
        return (-1 if here.pause_share >= _MUCH_PAUSED else 0), 1.0
    for place, one in enumerate(here.run.predictions):
        shared = set(one.changes) & set(changes)
        if one.rule in knob.rules and shared and all(one.changes[key] == changes[key] for key in shared):
            return place, own if one.saving is None else 1 - one.saving
    return len(here.run.predictions), own
